//! What a measurement on this machine says of a promise, as the exit status of a command.

use crate::print_note;
use std::process::ExitCode;

/// The exit status of a command that could not tell, as the machine was too busy.
pub const TOO_BUSY: u8 = 3;

/// Why a promise does not hold, or may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It was not kept.
    Broken(String),
    /// The machine was too busy to tell.
    TooBusy(String),
}

/// 0 if there is nothing, 1 if something was not kept, and [`TOO_BUSY`] if that cannot be told.
pub fn status(findings: &[Finding]) -> u8 {
    let is_broken = |finding: &Finding| matches!(finding, Finding::Broken(_));
    match findings {
        [] => 0,
        some if some.iter().any(is_broken) => 1,
        _ => TOO_BUSY,
    }
}

/// Says what was found, for whoever looks on. Returns the command's exit status.
pub fn conclude(findings: &[Finding]) -> ExitCode {
    for finding in findings {
        match finding {
            Finding::Broken(what) => print_note(format_args!("not as promised: {what}")),
            Finding::TooBusy(what) => {
                print_note(format_args!("this machine was too busy to tell: {what}"));
            }
        }
    }
    ExitCode::from(status(findings))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_broken_outweighs_what_cannot_be_told() {
        let (broken, busy) = (Finding::Broken("late".into()), Finding::TooBusy("lost".into()));
        assert_eq!(status(&[]), 0);
        assert_eq!(status(std::slice::from_ref(&busy)), TOO_BUSY);
        assert_eq!(status(&[busy, broken]), 1);
    }
}
