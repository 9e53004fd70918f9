//! What a bench did not measure, and why.

use crate::output::{print_line, print_note};
use serde::Serialize;

/// What a bench did not measure: a line of its JSON, and a note for whoever looks on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct LeftOut {
    /// The engine, or "all".
    pub(crate) left_out: &'static str,
    /// In which cases.
    pub(crate) case: String,
    /// Why, and what to do about it.
    pub(crate) why: String,
}

impl LeftOut {
    /// Says so.
    pub(crate) fn tell(&self, json: bool) -> anyhow::Result<()> {
        print_note(format_args!("{}: {} is left out: {}", self.case, self.left_out, self.why));
        if json {
            print_line(serde_json::to_string(self)?)?;
        }
        Ok(())
    }
}
