//! Line charts: numbers as CSV and their picture as SVG.

use anyhow::Context;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
pub use plotters::prelude::SeriesLabelPosition;
use plotters::prelude::*;
use serde::Serialize;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A picture of some curves.
pub struct Chart<'a> {
    /// What stands above it.
    pub title: &'a str,
    /// What the x axis counts.
    pub x_label: &'a str,
    /// What the y axis counts.
    pub y_label: &'a str,
    /// The x axis is logarithmic; then every x is more than 0.
    pub log_x: bool,
    /// Where the y axis starts.
    pub bottom: f64,
    /// Where the legend is.
    pub legend: SeriesLabelPosition,
    /// More than there are colours start over with them.
    pub curves: Vec<Curve>,
}

/// A curve, under the name that the legend gives it.
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Its points, in order of x.
    pub points: Vec<(f64, f64)>,
    /// Each point is marked: it was measured.
    pub marked: bool,
    /// Drawn instead of a line through the points: what was fitted to them.
    pub fitted: Option<Vec<(f64, f64)>>,
}

/// A column of rows that becomes a curve: its name, and its value where a row has one.
pub type Column<Row> = (&'static str, fn(&Row) -> Option<f64>);

/// A curve for each column.
pub fn curves<Row>(rows: &[Row], x: fn(&Row) -> f64, columns: &[Column<Row>]) -> Vec<Curve> {
    let points = |y: fn(&Row) -> Option<f64>| {
        rows.iter().filter_map(|row| y(row).map(|y| (x(row), y))).collect()
    };
    let curve = |(name, y): &Column<Row>| Curve {
        name: (*name).into(),
        points: points(*y),
        marked: false,
        fitted: None,
    };
    columns.iter().map(curve).collect()
}

/// Makes the folder that a flag names, unless it is there.
///
/// # Errors
/// What the system says, with the folder and the flag.
pub fn make_folder(folder: &Path, flag: &str) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| {
        format!("cannot make the folder {}; choose another with {flag}", folder.display())
    })
}

/// Writes rows as `folder/name.csv` and their chart as `folder/name.svg`; returns both files.
///
/// # Errors
/// What the system says, with the file.
pub fn write<Row: Serialize>(
    folder: &Path,
    name: &str,
    rows: &[Row],
    chart: &Chart<'_>,
) -> anyhow::Result<[PathBuf; 2]> {
    let table = folder.join(name).with_extension("csv");
    let picture = table.with_extension("svg");
    write_csv(&table, rows)?;
    chart.write(&picture)?;
    Ok([table, picture])
}

/// Writes rows as CSV.
///
/// # Errors
/// What the system says, with the file.
pub fn write_csv<Row: Serialize>(path: &Path, rows: &[Row]) -> anyhow::Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let mut csv = csv::Writer::from_path(path).with_context(cannot)?;
    for row in rows {
        csv.serialize(row)?;
    }
    csv.flush().with_context(cannot)
}

impl Chart<'_> {
    /// Writes the picture, SVG of 900 × 560.
    ///
    /// # Errors
    /// What the system says, with the file.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        self.draw(path).with_context(|| format!("cannot write {}", path.display()))
    }

    fn draw(&self, path: &Path) -> anyhow::Result<()> {
        let root = SVGBackend::new(path, (900, 560)).into_drawing_area();
        root.fill(&WHITE)?;
        let x = self.x_range();
        if self.log_x {
            let ticks = log_ticks(&x);
            self.draw_on(&root, x.log_scale().with_key_points(ticks))?;
        } else {
            self.draw_on(&root, RangedCoordf64::from(x))?;
        }
        root.present()?;
        Ok(())
    }

    fn x_range(&self) -> Range<f64> {
        let left = self.points().map(|(x, _)| x).fold(f64::INFINITY, f64::min);
        left..self.points().map(|(x, _)| x).fold(left, f64::max)
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.curves.iter().flat_map(|curve| curve.points.iter().copied())
    }

    fn draw_on<X>(&self, root: &Area<'_>, x: X) -> anyhow::Result<()>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        let top = self.points().map(|(_, y)| y).fold(self.bottom, f64::max) * 1.05;
        let mut chart = ChartBuilder::on(root)
            .caption(self.title, ("sans-serif", 22))
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(x, self.bottom..top)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(self.x_label)
            .y_desc(self.y_label)
            .x_label_formatter(&plain)
            .y_label_formatter(&plain)
            .label_style(("sans-serif", 14))
            .draw()?;
        for (curve, colour) in self.curves.iter().zip(COLOURS.into_iter().cycle()) {
            let style = colour.stroke_width(2);
            let line = curve.fitted.as_ref().unwrap_or(&curve.points);
            chart
                .draw_series(LineSeries::new(line.iter().copied(), style))?
                .label(&curve.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
            let marked = curve.points.iter().filter(|_| curve.marked);
            chart.draw_series(marked.map(|point| Circle::new(*point, 3, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(self.legend.clone())
            .background_style(WHITE.mix(0.85))
            .label_font(("sans-serif", 14))
            .draw()?;
        Ok(())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The marks of a logarithmic axis: 1, 2 and 5 of every decade, of many decades 1 alone.
fn log_ticks(x: &Range<f64>) -> Vec<f64> {
    let (first, last) = (x.start.log10().floor() as i32, x.end.log10().ceil() as i32);
    let digits: &[f64] = if last - first > 3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    // The ends may be a rounding off what they are meant to be.
    let (start, end) = (x.start * (1.0 - 1e-9), x.end * (1.0 + 1e-9));
    (first..=last)
        .flat_map(|decade| digits.iter().map(move |digit| digit * 10.0_f64.powi(decade)))
        .filter(|tick| (start..=end).contains(tick))
        .collect()
}

/// A number on an axis: whole ones without a point.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "plotters asks for it")]
fn plain(number: &f64) -> String {
    format!("{}", (number * 1000.0).round() / 1000.0)
}

const COLOURS: [RGBColor; 8] = [
    RGBColor(0xd6, 0x4a, 0x2b),
    RGBColor(0x2b, 0x6c, 0xb0),
    RGBColor(0x3f, 0x8f, 0x4f),
    RGBColor(0x8a, 0x55, 0xa8),
    RGBColor(0x22, 0x22, 0x22),
    RGBColor(0xb8, 0x86, 0x0b),
    RGBColor(0x1f, 0x9e, 0xa8),
    RGBColor(0xc2, 0x4b, 0x8a),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithmic_axes_have_few_marks() {
        assert_eq!(log_ticks(&(1.0..20.0)), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(log_ticks(&(1.0..30_000.0)), [1.0, 10.0, 100.0, 1000.0, 10_000.0]);
        assert_eq!(log_ticks(&(0.1..0.6)).len(), 3);
    }

    #[test]
    fn curves_are_drawn_on_either_axis_and_marked_where_measured() {
        let folder = tempfile::tempdir().unwrap();
        for log_x in [false, true] {
            let points = vec![(1.0, 2.0), (10.0, 3.0), (100.0, 2.5)];
            let curve = |number: usize| Curve {
                name: format!("curve {number}"),
                points: points.clone(),
                marked: number == 0,
                fitted: (number == 1).then(|| vec![(1.0, 2.5), (100.0, 2.5)]),
            };
            let chart = Chart {
                title: "Title",
                x_label: "x",
                y_label: "y",
                log_x,
                bottom: 1.0,
                legend: SeriesLabelPosition::LowerRight,
                curves: (0..9).map(curve).collect(),
            };
            let [csv, svg] = write(folder.path(), "figure", &[(1, 2)], &chart).unwrap();
            assert_eq!(std::fs::read_to_string(csv).unwrap(), "1,2\n");
            let svg = std::fs::read_to_string(svg).unwrap();
            assert_eq!(svg.matches("<circle").count(), 3);
            assert!(svg.contains("curve 8") && svg.contains("#C24B8A"), "{svg}");
        }
    }
}
