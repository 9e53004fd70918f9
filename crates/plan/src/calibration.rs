//! What sending costs on a machine, read from what `canopy bench groupcast --json` wrote there.

use crate::send_cost::SendCost;
use serde::Deserialize;
use std::fmt;

/// Milliseconds in a nanosecond, the file's unit.
const NANOSECOND: f64 = 1e-6;

/// Measured costs, in the order of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// One or more.
    pub costs: Vec<EngineCost>,
}

/// What a send engine costs.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineCost {
    /// The engine.
    pub engine: String,
    /// Where it sent to; empty if the file does not say.
    pub sink: String,
    /// Datagrams that left as one segmented send; 1 is without segmentation.
    pub segments: u32,
    /// Its cost, milliseconds. A cost per message below 0 is noise: then it is the best fit with
    /// none, the file's two-parameter one.
    pub cost: SendCost,
}

/// Which of the measured costs are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conditions<'a> {
    /// The sink; otherwise the file's first.
    pub sink: Option<&'a str>,
    /// The segments of a send.
    pub segments: u32,
}

/// Why a file tells no cost.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CalibrationError {
    /// A line is not what the benchmark writes.
    #[error("line {line}: {problem}; write the file anew with canopy bench groupcast --json")]
    Line {
        /// Where.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// There are no fits in it.
    #[error("there are no fits in it; write the file anew with canopy bench groupcast --json")]
    Empty,
    /// Nobody measured that.
    #[error("there is no fit of {wanted}; there are {}", .there.join(", "))]
    Missing {
        /// What was looked for.
        wanted: String,
        /// What there is.
        there: Vec<String>,
    },
}

impl Calibration {
    /// Reads JSON objects, one after another or in arrays. Those with an `r2` are fits; others, and
    /// fields that are not known, are passed over.
    ///
    /// # Errors
    /// What is wrong, with its line.
    pub fn from_json(text: &str) -> Result<Calibration, CalibrationError> {
        let mut costs = Vec::new();
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
        loop {
            let before = values.byte_offset();
            let Some(value) = values.next() else { break };
            let value = value.map_err(|error| CalibrationError::Line {
                line: error.line(),
                problem: format!("this is no JSON ({error})"),
            })?;
            let start = text[before..].len() - text[before..].trim_start().len() + before;
            let line = text[..start].matches('\n').count() + 1;
            read(value, &mut costs).map_err(|problem| CalibrationError::Line { line, problem })?;
        }
        if costs.is_empty() { Err(CalibrationError::Empty) } else { Ok(Calibration { costs }) }
    }

    /// What an engine costs under these conditions.
    ///
    /// # Errors
    /// It was not measured under them; what was is listed.
    pub fn engine(
        &self,
        engine: &str,
        conditions: Conditions<'_>,
    ) -> Result<&EngineCost, CalibrationError> {
        self.under(conditions)
            .into_iter()
            .find(|cost| cost.engine == engine)
            .ok_or_else(|| self.missing(engine, conditions))
    }

    /// The engine that costs least for a receiver more, under these conditions.
    ///
    /// # Errors
    /// Nothing was measured under them; what was is listed.
    pub fn cheapest(
        &self,
        bytes: f64,
        conditions: Conditions<'_>,
    ) -> Result<&EngineCost, CalibrationError> {
        let per_user = |engine: &&EngineCost| engine.cost.per_user(bytes);
        self.under(conditions)
            .into_iter()
            .min_by(|one, other| per_user(one).total_cmp(&per_user(other)))
            .ok_or_else(|| self.missing("any engine", conditions))
    }

    fn under(&self, conditions: Conditions<'_>) -> Vec<&EngineCost> {
        let sink = self.sink(conditions);
        let meant = |cost: &&EngineCost| cost.sink == sink && cost.segments == conditions.segments;
        self.costs.iter().filter(meant).collect()
    }

    fn sink<'a>(&'a self, conditions: Conditions<'a>) -> &'a str {
        let first = || self.costs.first().map_or("", |cost| cost.sink.as_str());
        conditions.sink.unwrap_or_else(first)
    }

    fn missing(&self, engine: &str, conditions: Conditions<'_>) -> CalibrationError {
        let (sink, segments) = (self.sink(conditions), conditions.segments);
        CalibrationError::Missing {
            wanted: Named { engine, sink, segments }.to_string(),
            there: self.costs.iter().map(|cost| cost.named().to_string()).collect(),
        }
    }
}

impl EngineCost {
    fn named(&self) -> Named<'_> {
        Named { engine: &self.engine, sink: &self.sink, segments: self.segments }
    }
}

struct Named<'a> {
    engine: &'a str,
    sink: &'a str,
    segments: u32,
}

impl fmt::Display for Named<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} (segments {}", self.engine, self.segments)?;
        if !self.sink.is_empty() {
            write!(out, ", sink {}", self.sink)?;
        }
        out.write_str(")")
    }
}

/// A fit as the file has it, nanoseconds.
#[derive(Deserialize)]
struct Record {
    engine: String,
    #[serde(default)]
    sink: String,
    #[serde(default = "unsegmented")]
    segments: u32,
    c: f64,
    x: f64,
    y: f64,
    paper: Option<PaperRecord>,
}

#[derive(Deserialize)]
struct PaperRecord {
    x: f64,
    y: f64,
}

fn unsegmented() -> u32 {
    1
}

/// Takes the fits out of a value.
fn read(value: serde_json::Value, costs: &mut Vec<EngineCost>) -> Result<(), String> {
    match value {
        serde_json::Value::Array(values) => {
            values.into_iter().try_for_each(|value| read(value, costs))
        }
        serde_json::Value::Object(fields) if fields.contains_key("r2") => {
            let record: Record = serde_json::from_value(fields.into())
                .map_err(|error| format!("this is no fit ({error})"))?;
            costs.push(record.cost()?);
            Ok(())
        }
        serde_json::Value::Object(_) => Ok(()),
        other => Err(format!("{other} is no object")),
    }
}

impl Record {
    fn cost(self) -> Result<EngineCost, String> {
        let (message, x, y) = match self.paper {
            _ if self.c >= 0.0 => (self.c, self.x, self.y),
            Some(paper) => (0.0, paper.x, paper.y),
            None => {
                return Err(format!(
                    "the fit of {} has c = {} and no \"paper\" to take instead",
                    self.engine, self.c
                ));
            }
        };
        let cost = SendCost {
            per_message: message * NANOSECOND,
            per_receiver: x * NANOSECOND,
            per_byte: y * NANOSECOND,
        };
        Ok(EngineCost { engine: self.engine, sink: self.sink, segments: self.segments, cost })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"{"machine":"a laptop","kernel":"6.8"}
{"engine":"sendto","n":10,"bytes":80,"segments":1,"ns_per_copy":900.5,"copies_per_s":1e6,"ratio_to_sendto":1.0,"lost":0}
{"engine":"sendto","sink":"drop","segments":1,"c":120.0,"x":850.0,"y":0.25,"r2":0.999,"r_at_80":1.0,"paper":{"x":870,"y":0.2,"r2":0.99}}

{"engine":"mmsg","sink":"drop","segments":1,"c":-20.0,"x":600.0,"y":0.5,"r2":0.999,"r_at_80":1.4,"paper":{"x":590,"y":0.4,"r2":0.99}}
{"engine":"mmsg","sink":"drop","segments":8,"c":90.0,"x":300.0,"y":0.5,"r2":0.999,"paper":{"x":310,"y":0.5,"r2":0.99}}
{"engine":"sendto","sink":"veth","segments":1,"c":9.0,"x":2000.0,"y":0.5,"r2":0.9}
"#;
    const PLAIN: Conditions<'_> = Conditions { sink: None, segments: 1 };

    #[test]
    fn fits_are_read_in_milliseconds() {
        let file = Calibration::from_json(FILE).unwrap();
        assert_eq!(file.costs.len(), 4);
        let sendto = file.engine("sendto", PLAIN).unwrap();
        assert_eq!(sendto.sink, "drop");
        let time = sendto.cost.time(10.0, 80.0);
        assert!((time - (120.0 + 10.0 * (850.0 + 20.0)) * 1e-6).abs() < 1e-12, "{time}");
        // A negative cost per message gives way to the fit without one.
        let mmsg = file.cheapest(80.0, PLAIN).unwrap();
        assert_eq!((mmsg.engine.as_str(), mmsg.cost.per_message), ("mmsg", 0.0));
        assert!((mmsg.cost.per_receiver - 590e-6).abs() < 1e-15);
        let segmented = Conditions { segments: 8, ..PLAIN };
        assert!(file.engine("mmsg", segmented).unwrap().cost.per_message > 0.0);
        let veth = Conditions { sink: Some("veth"), ..PLAIN };
        assert_eq!(file.cheapest(80.0, veth).unwrap().engine, "sendto");
        let array = format!("[{}]", FILE.trim().replace("}\n", "},").replace(",\n", ","));
        assert_eq!(Calibration::from_json(&array), Ok(file));
    }

    #[test]
    fn what_is_missing_is_named_with_what_is_there() {
        let file = Calibration::from_json(FILE).unwrap();
        let error = file.engine("uring", PLAIN).unwrap_err().to_string();
        let there = "there is no fit of uring (segments 1, sink drop); there are sendto (segments 1, \
            sink drop), mmsg (segments 1, sink drop), mmsg (segments 8, sink drop), sendto (segments \
            1, sink veth)";
        assert_eq!(error, there);
        let error = file.cheapest(80.0, Conditions { segments: 3, ..PLAIN }).unwrap_err();
        assert!(error.to_string().starts_with("there is no fit of any engine (segments 3"));
    }

    #[test]
    fn bad_files_are_refused_by_line() {
        let cases = [
            (
                "{\"a\":1}\n\n{\"r2\":1,\"engine\":\"sendto\"}",
                "line 3: this is no fit (missing field",
            ),
            ("{\"a\":1}\n{\"r2\":", "line 2: this is no JSON (EOF"),
            ("{\"a\":1}\nsendto 1 2 3", "line 2: this is no JSON (expected value"),
            ("7", "line 1: 7 is no object"),
            (
                "{\"engine\":\"e\",\"c\":-1,\"x\":1,\"y\":1,\"r2\":1}",
                "line 1: the fit of e has c = -1 and no \"paper\"",
            ),
            ("{\"engine\":\"sendto\",\"n\":1}", "there are no fits in it; write the file anew"),
            ("", "there are no fits in it"),
        ];
        for (text, expected) in cases {
            let error = Calibration::from_json(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
