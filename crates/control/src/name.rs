//! Names of users, worlds, channels and relays: unique, and readable by people (Forest §3.2).

use crate::codec::{CodecError, Coded, Reader};
use core::fmt;
use std::sync::Arc;

/// The longest name, bytes: as long as a token can hold.
pub const MAX_NAME: usize = canopy_token::MAX_NAME;

/// A name: 1 to [`MAX_NAME`] of `a`–`z`, `0`–`9`, `-`, `_`, `.` and `/`, the first a letter or digit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is no name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There is nothing in it.
    #[error("the name is empty; give 1 to {MAX_NAME} characters")]
    Empty,
    /// It is too long.
    #[error("the name has {0} bytes; shorten it to {MAX_NAME}")]
    Long(usize),
    /// It begins with something else than a letter or a digit.
    #[error("the name {0:?} begins with {1:?}; begin with a letter from a to z or a digit")]
    Begin(String, char),
    /// It has a character that is not allowed.
    #[error(
        "the name {name:?} has {found:?} at place {place}; use a to z, 0 to 9, '-', '_', '.' and '/'"
    )]
    Character {
        /// The name.
        name: String,
        /// What is not allowed.
        found: char,
        /// Where, counted from 1.
        place: usize,
    },
}

impl Name {
    /// This text as a name.
    ///
    /// # Errors
    /// What is wrong with it, where, and what is allowed.
    pub fn new(text: &str) -> Result<Name, NameError> {
        let Some(first) = text.chars().next() else { return Err(NameError::Empty) };
        if text.len() > MAX_NAME {
            return Err(NameError::Long(text.len()));
        }
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_./".contains(c);
        if let Some((at, found)) = text.chars().enumerate().find(|(_, c)| !fits(*c)) {
            return Err(NameError::Character { name: text.to_owned(), found, place: at + 1 });
        }
        if !first.is_ascii_alphanumeric() {
            return Err(NameError::Begin(text.to_owned(), first));
        }
        Ok(Name(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Coded for Name {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.as_ref().to_owned().put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Name, CodecError> {
        Name::new(&String::take(from)?).map_err(|_| CodecError::Value("name"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_refused_says_where_and_what_to_do() {
        for good in ["a", "7", "eu-west/relay_1.a", &"x".repeat(MAX_NAME)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        let refused = |text: &str| Name::new(text).unwrap_err().to_string();
        assert!(refused("").contains("empty"));
        assert!(refused(&"x".repeat(MAX_NAME + 1)).contains("shorten it to 64"));
        assert!(refused("eu west").contains("' ' at place 3"));
        assert!(refused("Europe").contains("'E' at place 1"));
        assert!(refused("-a").contains("begin with a letter"));
    }
}
