//! Networks in GML, as the Internet Topology Zoo has them.

use crate::network::{Described, Network, NetworkError, Node, counted};
use crate::place::Place;
use crate::rate::Rate;
use std::collections::BTreeMap;

/// Lists in lists in lists: no network needs more.
const DEEPEST: usize = 16;

impl Network {
    /// Reads a network in GML: `graph [ node [ id 0 label "A" Latitude 1.0 Longitude 2.0 ] …
    /// edge [ source 0 target 1 ] … ]`. Nodes may have `x` and `y` in kilometres instead, edges a
    /// `length` in kilometres. Labels that stand twice get the id behind them.
    ///
    /// # Errors
    /// What is wrong, with its line.
    pub fn from_gml(text: &str) -> Result<Network, NetworkError> {
        let mut reader = Reader { text, at: 0, line: 1 };
        let top = reader.list(0)?;
        let Some(graph) = top.into_iter().find(|entry| entry.key == "graph") else {
            return Err(NetworkError::line(1, "there is no graph [ … ]; is this GML?"));
        };
        let Value::List(entries) = graph.value else {
            return Err(NetworkError::line(graph.line, "graph is no list; write graph [ … ]"));
        };
        let mut nodes = Vec::new();
        let mut numbers = BTreeMap::new();
        for entry in entries.iter().filter(|entry| entry.key == "node") {
            let id = entry.number("id")?.ok_or_else(|| entry.lacks("id"))?;
            if numbers.insert(id.to_bits(), nodes.len()).is_some() {
                let problem = format!("node id {id} stands twice; give each node its own");
                return Err(NetworkError::line(entry.line, problem));
            }
            nodes.push((id, entry.text("label")?, entry.place()?));
        }
        let mut links = Vec::new();
        for entry in entries.iter().filter(|entry| entry.key == "edge") {
            let end = |key: &str| {
                let id = entry.number(key)?.ok_or_else(|| entry.lacks(key))?;
                numbers.get(&id.to_bits()).copied().ok_or_else(|| {
                    let problem = format!("{key} {id} is no node's id");
                    NetworkError::line(entry.line, problem)
                })
            };
            let ends = [end("source")?, end("target")?];
            let length = entry.number("length")?;
            links.push(Described { ends, length, free: [Rate::UNLIMITED; 2] });
        }
        let mut notes = Vec::new();
        Network::described(named(nodes, &mut notes), &links, notes)
    }
}

/// Gives every node a name of its own: its label, or with its id if others have that label.
fn named(nodes: Vec<(f64, Option<&str>, Option<Place>)>, notes: &mut Vec<String>) -> Vec<Node> {
    let mut count: BTreeMap<&str, u32> = BTreeMap::new();
    for label in nodes.iter().filter_map(|(_, label, _)| *label) {
        *count.entry(label).or_default() += 1;
    }
    let name = |id: f64, label: Option<&str>| match label {
        Some(label) if count[label] == 1 && !label.is_empty() => label.to_owned(),
        Some(label) if !label.is_empty() => format!("{label} ({id})"),
        _ => format!("node {id}"),
    };
    let mut repeated = count.iter().filter(|(_, count)| **count > 1).map(|(label, _)| *label);
    if let Some(first) = repeated.next() {
        let labels = counted(repeated.count() + 1, "label");
        notes
            .push(format!("put the id behind {labels} that stand more than once, {first:?} first"));
    }
    nodes
        .iter()
        .map(|(id, label, place)| Node {
            name: name(*id, *label),
            place: *place,
            located: place.is_some(),
        })
        .collect()
}

struct Entry<'a> {
    key: &'a str,
    value: Value<'a>,
    line: usize,
}

enum Value<'a> {
    Number(f64),
    Text(&'a str),
    List(Vec<Entry<'a>>),
}

impl<'a> Entry<'a> {
    fn get(&self, key: &str) -> Result<Option<&Entry<'a>>, NetworkError> {
        let Value::List(entries) = &self.value else {
            let problem = format!("{0} is no list; write {0} [ … ]", self.key);
            return Err(NetworkError::line(self.line, problem));
        };
        Ok(entries.iter().find(|entry| entry.key == key))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, NetworkError> {
        let Some(entry) = self.get(key)? else { return Ok(None) };
        match entry.value {
            Value::Number(number) => Ok(Some(number)),
            _ => Err(NetworkError::line(entry.line, format!("{key} is no number"))),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>, NetworkError> {
        let Some(entry) = self.get(key)? else { return Ok(None) };
        match entry.value {
            Value::Text(text) => Ok(Some(text)),
            _ => Err(NetworkError::line(entry.line, format!("{key} is no text; put it in quotes"))),
        }
    }

    fn place(&self) -> Result<Option<Place>, NetworkError> {
        let globe = self.number("Latitude")?.zip(self.number("Longitude")?);
        let plane = self.number("x")?.zip(self.number("y")?);
        Ok(globe
            .map(|(latitude, longitude)| Place::Globe { latitude, longitude })
            .or(plane.map(|(x, y)| Place::Plane { x, y })))
    }

    fn lacks(&self, key: &str) -> NetworkError {
        NetworkError::line(self.line, format!("the {} has no {key}", self.key))
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Reader<'a> {
    /// The entries up to the bracket that closes the list, or on the top level to the end.
    fn list(&mut self, depth: usize) -> Result<Vec<Entry<'a>>, NetworkError> {
        let opened = self.line;
        let mut entries = Vec::new();
        loop {
            self.skip_space();
            match self.peek() {
                None if depth == 0 => return Ok(entries),
                None => {
                    let problem = format!("the list that line {opened} opens is not closed");
                    return Err(NetworkError::line(self.line, problem));
                }
                Some(']') if depth > 0 => {
                    self.at += 1;
                    return Ok(entries);
                }
                Some(_) => entries.push(self.entry(depth)?),
            }
        }
    }

    fn entry(&mut self, depth: usize) -> Result<Entry<'a>, NetworkError> {
        let line = self.line;
        let key = self.word();
        if !key.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_') {
            return Err(NetworkError::line(line, format!("{key:?} is no key; expected a name")));
        }
        self.skip_space();
        let value = match self.peek() {
            Some('[') if depth < DEEPEST => {
                self.at += 1;
                Value::List(self.list(depth + 1)?)
            }
            Some('[') => return Err(NetworkError::line(line, "lists are nested too deep")),
            Some('"') => Value::Text(self.quoted()?),
            _ => {
                let word = self.word();
                let number = word.parse::<f64>().ok().filter(|number| number.is_finite());
                let problem = || format!("{word:?} after {key} is no number, no text, no list");
                Value::Number(number.ok_or_else(|| NetworkError::line(self.line, problem()))?)
            }
        };
        Ok(Entry { key, value, line })
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn skip_space(&mut self) {
        while let Some(next) = self.peek() {
            if next == '#' {
                let rest = &self.text[self.at..];
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if next.is_whitespace() {
                self.line += usize::from(next == '\n');
                self.at += next.len_utf8();
            } else {
                return;
            }
        }
    }

    fn word(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let ends = |next: char| next.is_whitespace() || matches!(next, '[' | ']' | '"');
        // At least one character, so that reading goes on.
        let least = rest.chars().next().map_or(0, char::len_utf8);
        let len = rest.find(ends).unwrap_or(rest.len()).max(least);
        self.at += len;
        &rest[..len]
    }

    fn quoted(&mut self) -> Result<&'a str, NetworkError> {
        let opened = self.line;
        let rest = &self.text[self.at + 1..];
        let Some(len) = rest.find('"') else {
            return Err(NetworkError::line(opened, "the text is not closed: a quote is missing"));
        };
        self.line += rest[..len].matches('\n').count();
        self.at += len + 2;
        Ok(&rest[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALL: &str = r#"
# a comment
Creator "nobody [ ]"
graph [
  directed 0
  node [ id 7 label "Rome" Latitude 41.9 Longitude 12.5 graphics [ fill "x" ] ]
  node [ id 9 label "Rome" ]
  node [ id 11 Longitude 9.19 Latitude 45.46 ]
  edge [ source 7 target 9 length 3.5 ]
  edge [ source 9 target 11 ]
  edge [ source 9 target 9 ]
]
"#;

    #[test]
    fn a_network_is_read() {
        let network = Network::from_gml(SMALL).unwrap();
        let names: Vec<&str> = network.nodes().iter().map(|node| node.name.as_str()).collect();
        assert_eq!(names, ["Rome (7)", "Rome (9)", "node 11"]);
        assert_eq!(network.links().len(), 2);
        assert_eq!(network.links()[0].length, 3.5);
        assert_eq!(network.notes().len(), 3, "{:?}", network.notes());
        assert!(!network.nodes()[1].located && network.nodes()[2].located);
    }

    #[test]
    fn errors_name_the_line() {
        let cases = [
            ("x 1", "line 1: there is no graph"),
            ("graph [\n node [ label \"a\" ]\n]", "line 2: the node has no id"),
            ("graph [\n node [ id 1 ]\n\n node [ id 1 ] ]", "line 4: node id 1 stands twice"),
            ("graph [ node [ id 1 ]\n edge [ source 1 target 2 ] ]", "line 2: target 2 is no node"),
            ("graph [\n\n", "line 3: the list that line 1 opens is not closed"),
            ("graph [ node [ id \"a\" ] ]", "line 1: id is no number"),
            ("graph [ node [ id 1 label\n \"a ] ]", "line 2: the text is not closed"),
            ("graph 5", "line 1: graph is no list"),
            ("graph [ node 5 ]", "line 1: node is no list"),
            ("graph [ 5 5 ]", "line 1: \"5\" is no key"),
            ("graph [ ]", "there are no nodes"),
        ];
        for (text, expected) in cases {
            let error = Network::from_gml(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text:?}: {error}");
        }
        let deep = format!("graph {}", "[ a ".repeat(100_000));
        assert!(Network::from_gml(&deep).unwrap_err().to_string().contains("too deep"));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            rng_seed: proptest::test_runner::RngSeed::Fixed(0x9a),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn no_text_makes_it_panic(text in "(graph|node|edge|id|source|target|x|y|[\\[\\]\"# \n]|-?[0-9]{1,3}|\\PC){0,60}") {
            let _ = Network::from_gml(&text);
            let _ = Network::from_gml(&format!("graph [ {text} ]"));
        }
    }
}
