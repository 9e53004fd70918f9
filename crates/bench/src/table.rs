//! Results as a table.

use std::iter::once;

/// A column: its heading, and what stands in it.
pub(crate) type Column<Row> = (&'static str, fn(&Row) -> String);

/// The rows below the headings, each column as wide as it needs to be. Words stand to the left,
/// numbers to the right.
pub(crate) fn table<Row>(rows: &[Row], columns: &[Column<Row>]) -> String {
    let mut lines = vec![String::new(); rows.len() + 1];
    for (heading, cell) in columns {
        let cells: Vec<String> = once((*heading).to_owned()).chain(rows.iter().map(cell)).collect();
        let width = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0);
        let is_word = cells.last().is_some_and(|cell| cell.starts_with(char::is_alphabetic));
        for (line, cell) in lines.iter_mut().zip(cells) {
            let aligned =
                if is_word { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
            line.extend([aligned.as_str(), "  "]);
        }
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_to_the_left_and_numbers_to_the_right() {
        let columns: [Column<(&str, f64)>; 2] =
            [("engine", |row| row.0.to_owned()), ("µs", |row| format!("{:.1}", row.1))];
        let rows = [("gso", 1.0), ("sendto", 22.5)];
        assert_eq!(table(&rows, &columns), "engine    µs\ngso      1.0\nsendto  22.5");
    }
}
