//! Where the recorded crowds are for tests; they are read whole, when they are there.

use crate::{Grid, Trace};
use std::path::{Path, PathBuf};

/// Name, walkers, positions, seconds, the grid's cell and radius.
const TRACES: [(&str, u32, usize, f64, f64, f64); 4] = [
    ("quake-arena", 11, 11_077, 100.7, 128.0, 512.0),
    ("campus", 428, 21_846, 215.6, 2.0, 4.0),
    ("corridor-flow", 349, 79_843, 82.75, 2.0, 4.0),
    ("crossing-crowd", 304, 114_117, 76.625, 2.0, 4.0),
];

/// The folder of the recorded crowds: `CANOPY_TRACES`, or the one beside the checkout. Says so if there is none.
pub(crate) fn recorded() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/traces");
    let given = std::env::var_os("CANOPY_TRACES");
    if given.is_none() && !beside.is_dir() {
        println!("skipped: no recorded crowds; say where they are with CANOPY_TRACES=FOLDER");
        return None;
    }
    Some(given.map_or(beside, PathBuf::from))
}

#[test]
fn all_recorded_crowds_are_read() {
    let Some(folder) = recorded() else { return };
    for (name, walkers, rows, seconds, cell, radius) in TRACES {
        let trace = Trace::read(&folder.join(format!("{name}.csv.gz"))).unwrap();
        assert_eq!(trace.name(), name);
        assert_eq!((trace.walkers(), trace.rows().len()), (walkers, rows), "{name}");
        assert!((trace.seconds() - seconds).abs() < 0.1, "{name}: {} s", trace.seconds());
        let trace = trace.repeat(3, 2.0 * (cell + radius));
        assert_eq!((trace.walkers(), trace.rows().len()), (3 * walkers, 3 * rows), "{name}");
        let (min, max) = trace.bounds();
        let reach = min.iter().chain(&max).fold(0.0, |reach: f64, edge| reach.max(edge.abs()));
        Grid::new(cell, radius).unwrap().check_reach(reach).unwrap();
    }
}
