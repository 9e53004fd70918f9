//! Rates as flags: a number, and a letter for thousands, millions or thousands of millions.

use canopy_plan::Rate;

/// Reads `1`, `64k`, `2.5M` or `10G`.
///
/// # Errors
/// It is no rate, in words.
pub(crate) fn number(text: &str) -> Result<f64, String> {
    let text = text.trim();
    let (digits, times) = match text.char_indices().last() {
        Some((at, 'k')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let number = digits.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let rate = number.map(|number| number * times).filter(|rate| *rate <= Rate::MOST);
    let what =
        || format!("{text:?} is no rate; give a number from 0 to 4398G, like 64k, 2.5M or 10G");
    rate.ok_or_else(what)
}

/// Reads bits a second, whole ones.
///
/// # Errors
/// It is no rate, in words.
pub(crate) fn bits(text: &str) -> Result<u64, String> {
    number(text).map(|bits| bits.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_numbers_with_a_letter() {
        let read = ["0", "100000000", "64k", "2.5M", " 10G", "0.0015k"].map(bits);
        let wanted = [0, 100_000_000, 64_000, 2_500_000, 10_000_000_000, 2].map(Ok);
        assert_eq!(read, wanted);
        for text in ["", "-1", "1,2", "inf", "1m", "M", "5000G", "1e308"] {
            assert!(bits(text).unwrap_err().contains("is no rate"), "{text}");
        }
    }
}
