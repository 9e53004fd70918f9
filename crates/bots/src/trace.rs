//! Traces: who is where when, recorded or generated.

use flate2::read::MultiGzDecoder;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// One position of one walker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Seconds since the first row of the trace.
    pub t: f64,
    /// The walker's index, counted from 0 in the order of first appearance.
    pub walker: u32,
    /// Metres.
    pub x: f64,
    /// Metres.
    pub y: f64,
}

/// Who is where when, in order of time.
#[derive(Clone, Debug)]
pub struct Trace {
    name: String,
    rows: Vec<Row>,
    walkers: u32,
}

/// A crowd to generate: walkers that go from one random place in a square to the next.
#[derive(Clone, Copy, Debug)]
pub struct Generated {
    /// The same seed gives the same crowd.
    pub seed: u64,
    /// How many walkers.
    pub walkers: u32,
    /// Side of the square, metres.
    pub side: f64,
    /// Length, seconds.
    pub seconds: f64,
    /// Positions a second of each walker.
    pub rate: f64,
}

/// Why a file is no trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read the trace {}; check --trace", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong, and the remedy.
        problem: String,
    },
    /// There is no position in it.
    #[error("{} has no positions; a trace has the header t,id,x,y and a line for each position", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

impl Trace {
    /// Reads a trace from a CSV file with at least the columns `t` (seconds), `id` (an integer),
    /// `x` and `y` (metres), sorted by `t`; gzipped if its name ends in `.gz`.
    ///
    /// # Errors
    /// What is wrong, with file and line.
    pub fn read(path: &Path) -> Result<Trace, TraceError> {
        let cannot = |source| TraceError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(cannot)?;
        let zipped = path.extension().is_some_and(|extension| extension == "gz");
        let reader: Box<dyn Read> =
            if zipped { Box::new(MultiGzDecoder::new(file)) } else { Box::new(file) };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.trim_end_matches(".gz").trim_end_matches(".csv").to_owned();
        Trace::parse(reader, name, path)
    }

    fn parse(reader: impl Read, name: String, path: &Path) -> Result<Trace, TraceError> {
        let wrong = |line, problem| TraceError::Line { path: path.to_owned(), line, problem };
        let mut csv = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(reader);
        let header = csv.headers().map_err(|error| wrong(1, error.to_string()))?.clone();
        let column = |name: &str| {
            header.iter().position(|column| column == name).ok_or_else(|| {
                wrong(1, format!("there is no column {name}; the header must name t, id, x and y"))
            })
        };
        let columns = [column("t")?, column("id")?, column("x")?, column("y")?];
        let mut ids: BTreeMap<i64, u32> = BTreeMap::new();
        let mut rows: Vec<Row> = Vec::new();
        let mut start = None;
        let mut record = csv::StringRecord::new();
        loop {
            let more = csv.read_record(&mut record);
            let line = csv.position().line();
            match more {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    let line = error.position().map_or(line, csv::Position::line);
                    return Err(wrong(line, format!("{error}; every line needs all columns")));
                }
            }
            let line = record.position().map_or(line, csv::Position::line);
            let field = |column: usize| record.get(columns[column]).unwrap_or_default();
            let number = |column: usize| {
                let text = field(column);
                text.parse::<f64>().ok().filter(|number| number.is_finite()).ok_or_else(|| {
                    wrong(
                        line,
                        format!("{text:?} in column {} is no number", &header[columns[column]]),
                    )
                })
            };
            let id: i64 = field(1)
                .parse()
                .map_err(|_| wrong(line, format!("{:?} in column id is no integer", field(1))))?;
            let t = number(0)?;
            let t = t - *start.get_or_insert(t);
            if rows.last().is_some_and(|last| t < last.t) {
                return Err(wrong(line, "time runs backwards; sort the trace by t".to_owned()));
            }
            let next = ids.len() as u32;
            let walker = *ids.entry(id).or_insert(next);
            rows.push(Row { t, walker, x: number(2)?, y: number(3)? });
        }
        if rows.is_empty() {
            return Err(TraceError::Empty { path: path.to_owned() });
        }
        Ok(Trace { name, rows, walkers: ids.len() as u32 })
    }

    /// Walkers that go from one random place to the next, at 0.6 to 1.8 m/s.
    pub fn generate(wanted: &Generated) -> Trace {
        let mut rng = ChaCha8Rng::seed_from_u64(wanted.seed);
        let mut place = || (rng.random_range(0.0..wanted.side), rng.random_range(0.0..wanted.side));
        let mut walkers: Vec<_> = (0..wanted.walkers).map(|_| (place(), place())).collect();
        let mut paces = vec![0.0; walkers.len()];
        let mut rows = Vec::new();
        let steps = (wanted.seconds * wanted.rate).max(1.0) as u64;
        for step in 0..steps {
            for (walker, ((x, y), goal)) in walkers.iter_mut().enumerate() {
                // Not all at the same instant.
                let phase = f64::from(walker as u32) / f64::from(wanted.walkers.max(1));
                let t = (step as f64 + phase) / wanted.rate;
                rows.push(Row { t, walker: walker as u32, x: *x, y: *y });
                let (dx, dy) = (goal.0 - *x, goal.1 - *y);
                let (left, pace) = (dx.hypot(dy), paces[walker] / wanted.rate);
                if left <= pace || paces[walker] == 0.0 {
                    paces[walker] = rng.random_range(0.6..1.8);
                    *goal =
                        (rng.random_range(0.0..wanted.side), rng.random_range(0.0..wanted.side));
                } else {
                    (*x, *y) = (*x + dx / left * pace, *y + dy / left * pace);
                }
            }
        }
        let name = format!("{} generated walkers", wanted.walkers);
        Trace { name, rows, walkers: wanted.walkers }
    }

    /// The trace with `times` copies of its walkers, so far apart in x that those of one copy
    /// never come within `reach` metres of another's. Worlds of their own have no common clock:
    /// the copies' samples are spread evenly over the recording's sampling interval.
    #[must_use]
    pub fn repeat(self, times: u32, reach: f64) -> Trace {
        let (min, max) = self.bounds();
        let shift = max[0] - min[0] + 2.0 * reach;
        let delay = self.interval() / f64::from(times.max(1));
        let walkers = self.walkers;
        let mut rows: Vec<Row> = (0..times)
            .flat_map(|copy| {
                self.rows.iter().map(move |row| Row {
                    t: row.t + f64::from(copy) * delay,
                    walker: row.walker + copy * walkers,
                    x: row.x + f64::from(copy) * shift,
                    y: row.y,
                })
            })
            .collect();
        rows.sort_by(|a, b| a.t.total_cmp(&b.t));
        Trace { rows, walkers: walkers * times, name: self.name }
    }

    /// The time between two samples of the recording, seconds: the median of the steps in time.
    pub(crate) fn interval(&self) -> f64 {
        let mut steps: Vec<f64> = self
            .rows
            .windows(2)
            .map(|pair| pair[1].t - pair[0].t)
            .filter(|step| *step > 0.0)
            .collect();
        steps.sort_by(f64::total_cmp);
        steps.get(steps.len() / 2).copied().unwrap_or(0.0)
    }

    /// What it is called: the file's name without endings, or how it was generated.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All positions, in order of time.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// How many walkers there are.
    pub fn walkers(&self) -> u32 {
        self.walkers
    }

    /// The time of the last position, seconds.
    pub fn seconds(&self) -> f64 {
        self.rows.last().map_or(0.0, |row| row.t)
    }

    /// The smallest and the largest x and y.
    pub fn bounds(&self) -> ([f64; 2], [f64; 2]) {
        let far = ([f64::INFINITY; 2], [f64::NEG_INFINITY; 2]);
        self.rows.iter().fold(far, |(min, max), row| {
            ([min[0].min(row.x), min[1].min(row.y)], [max[0].max(row.x), max[1].max(row.y)])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Trace, String> {
        Trace::parse(text.as_bytes(), "x".to_owned(), Path::new("x.csv"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_trace_is_read_and_starts_at_zero() {
        let trace = parse("t,id,x,y,z\n4.5,16,1,2,3\n4.5,31,0,0,0\n5.0,16,1.5,2,3\n").unwrap();
        assert_eq!(trace.walkers(), 2);
        assert_eq!(trace.rows()[2], Row { t: 0.5, walker: 0, x: 1.5, y: 2.0 });
    }

    #[test]
    fn errors_name_the_line_and_the_remedy() {
        let cases = [
            ("t,id,x\n", "x.csv:1: there is no column y"),
            ("t,id,x,y\n1,1,a,2\n", "x.csv:2: \"a\" in column x is no number"),
            ("t,id,x,y\n1,1,1,2\n1,b,1,2\n", "x.csv:3: \"b\" in column id is no integer"),
            ("t,id,x,y\n2,1,1,2\n1,1,1,2\n", "x.csv:3: time runs backwards; sort"),
            ("t,id,x,y\n1,1,1\n", "x.csv:2: "),
            ("t,id,x,y\n", "x.csv has no positions"),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn copies_are_out_of_reach_and_out_of_step() {
        let text = "t,id,x,y\n0,1,0,0\n0,2,10,0\n0.6,1,0,0\n";
        let trace = parse(text).unwrap().repeat(3, 6.0);
        assert_eq!(trace.walkers(), 6);
        let xs: Vec<f64> = trace.rows().iter().map(|row| row.x).collect();
        assert_eq!(xs, [0.0, 10.0, 22.0, 32.0, 44.0, 54.0, 0.0, 22.0, 44.0]);
        let ts: Vec<i64> = trace.rows().iter().map(|row| (row.t * 10.0).round() as i64).collect();
        assert_eq!(ts, [0, 0, 2, 2, 4, 4, 6, 8, 10]);
    }

    #[test]
    fn a_seed_generates_one_crowd() {
        let wanted = Generated { seed: 1, walkers: 3, side: 20.0, seconds: 5.0, rate: 10.0 };
        let trace = Trace::generate(&wanted);
        assert_eq!(trace.rows().len(), 150);
        assert_eq!(trace.rows(), Trace::generate(&wanted).rows());
        assert!(trace.rows().windows(2).all(|pair| pair[0].t <= pair[1].t));
    }

    #[test]
    fn gzip_is_undone() {
        use std::io::Write;
        let file = tempfile::Builder::new().suffix(".csv.gz").tempfile().unwrap();
        let mut zip = flate2::write::GzEncoder::new(file.as_file(), flate2::Compression::fast());
        zip.write_all(b"t,id,x,y\n1,1,1,2\n").unwrap();
        zip.finish().unwrap();
        assert_eq!(Trace::read(file.path()).unwrap().rows().len(), 1);
    }
}
