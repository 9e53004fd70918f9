//! A value of the settings, and the place where it was given.

use anyhow::anyhow;

/// A value and where it was given, for errors.
pub(super) struct Given<T> {
    pub(super) value: T,
    pub(super) place: String,
}

impl<T> Given<T> {
    /// The value as it was given.
    pub(super) fn value(self) -> T {
        self.value
    }

    /// A valid form of the value, or an error that names where it came from.
    pub(super) fn check<U>(self, check: impl FnOnce(T) -> Result<U, String>) -> anyhow::Result<U> {
        let Given { value, place } = self;
        check(value).map_err(|problem| anyhow!("{place}: {problem}"))
    }
}
