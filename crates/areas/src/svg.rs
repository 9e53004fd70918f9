//! A picture of a division.

use crate::division::{Area, Division};
use crate::plane::Rect;
use std::collections::BTreeMap;
use std::fmt::Write;

/// How wide the picture is, pixels.
const WIDTH: f64 = 960.0;

impl Division {
    /// A picture of the areas with their groups, each the redder the more are in it.
    pub fn to_svg(&self, crowd: &BTreeMap<Area, u32>) -> String {
        let cells = self.ground.cells();
        let bounds: Vec<Rect> = (0..cells).map(|cell| self.ground.bounds(cell)).collect();
        let least = |axis: usize| bounds.iter().map(|of| of.from[axis]).fold(f64::MAX, f64::min);
        let most = |axis: usize| bounds.iter().map(|of| of.to[axis]).fold(f64::MIN, f64::max);
        let (from, to) = ([least(0), least(1)], [most(0), most(1)]);
        let scale = WIDTH / (to[0] - from[0]).max(f64::MIN_POSITIVE);
        let height = (to[1] - from[1]) * scale;
        // North is up.
        let place = |[x, y]: [f64; 2]| [(x - from[0]) * scale, (to[1] - y) * scale];
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"-2 -2 {:.0} {:.0}\" \
             font-family=\"sans-serif\" font-size=\"9\" text-anchor=\"middle\" fill-rule=\"evenodd\" \
             stroke=\"#456\" stroke-width=\"0.6\">\n",
            WIDTH + 4.0,
            height + 4.0
        );
        let fullest = crowd.values().copied().max().unwrap_or(0).max(1);
        for cell in 0..cells {
            let mut path = String::new();
            for ring in self.ground.outline(cell) {
                for (index, point) in ring.into_iter().map(place).enumerate() {
                    let letter = if index == 0 { 'M' } else { 'L' };
                    // Writing to a String cannot fail.
                    _ = write!(path, "{letter}{:.1} {:.1}", point[0], point[1]);
                }
                path.push('Z');
            }
            _ = writeln!(
                svg,
                "<clipPath id=\"c{cell}\"><path d=\"{path}\" clip-rule=\"evenodd\"/></clipPath>"
            );
            _ = writeln!(svg, "<path d=\"{path}\" fill=\"none\"/>");
        }
        for area in self.areas() {
            let Rect { from: low, to: high } = self.bounds(area);
            let [x, y] = place([low[0], high[1]]);
            let (wide, tall) = ((high[0] - low[0]) * scale, (high[1] - low[1]) * scale);
            let there = crowd.get(&area).copied().unwrap_or(0);
            let pale = 255 - there * 170 / fullest;
            let group = self.group_of(area).map(|group| group.number()).unwrap_or(0);
            _ = writeln!(
                svg,
                "<g clip-path=\"url(#c{})\"><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" \
                 height=\"{tall:.1}\" fill=\"rgb(255,{pale},{pale})\" fill-opacity=\"0.6\"/></g>\
                 <text x=\"{:.1}\" y=\"{:.1}\" stroke=\"none\">{group}<title>area {area}: {there} there</title></text>",
                area.cell_number(),
                x + wide / 2.0,
                y + tall / 2.0,
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}
