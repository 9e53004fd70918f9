//! Every position is in one area, and no area within reach is left out.

use canopy_areas::{Area, Areas, AreasError, Crowds, Division, Ground, Polygon, Rect, Ring, Rules};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn rules() -> ProptestConfig {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(0xa4ea);
    ProptestConfig { rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}

const OVER: Rect = Rect { from: [-20.0, 10.0], to: [85.0, 77.0] };

/// Two towers beside a triangle, and one of the towers has a hole.
fn polygons() -> Ground {
    let square = |x: f64, y: f64, side: f64| {
        vec![[x, y], [x + side, y], [x + side, y + side], [x, y + side]]
    };
    let named = |rings| Polygon { name: String::new(), rings };
    Ground::Polygons(vec![
        named(vec![square(0.0, 0.0, 30.0), square(10.0, 10.0, 10.0)]),
        named(vec![square(30.0, 0.0, 30.0)]),
        named(vec![vec![[0.0, 30.0], [60.0, 30.0], [30.0, 80.0]]]),
    ])
}

fn grounds() -> impl Strategy<Value = Ground> {
    prop_oneof![
        (7.0..30.0).prop_map(|size| Ground::Grid { size, over: OVER }),
        (7.0..30.0).prop_map(|size| Ground::Hex { size, over: OVER }),
        Just(polygons()),
    ]
}

/// A division of which some areas are split, each chosen by a number.
fn divisions() -> impl Strategy<Value = Division> {
    (grounds(), prop::collection::vec(any::<u16>(), 0..12)).prop_map(|(ground, choices)| {
        let mut division = Division::new(ground, 100, 400).unwrap();
        for choice in choices {
            let areas: Vec<Area> = division.areas().filter(|area| area.depth() < 4).collect();
            let groups: Vec<u32> = division.free_groups().take(4).collect();
            let area = areas[usize::from(choice) % areas.len()];
            division.splits.insert(area, groups.try_into().unwrap());
        }
        division.check().unwrap();
        division
    })
}

fn positions() -> impl Strategy<Value = [f64; 2]> {
    [-60.0..120.0, -40.0..130.0]
}

fn is_in(polygon: &Polygon, [x, y]: [f64; 2]) -> bool {
    let winding = |ring: &Vec<[f64; 2]>| {
        let next = ring.iter().cycle().skip(1);
        let angle = |(a, b): (&[f64; 2], &[f64; 2])| {
            let (a, b) = ([a[0] - x, a[1] - y], [b[0] - x, b[1] - y]);
            (a[0] * b[1] - a[1] * b[0]).atan2(a[0] * b[0] + a[1] * b[1])
        };
        ring.iter().zip(next).map(angle).sum::<f64>().abs() > 3.0
    };
    polygon.rings.iter().filter(|ring| winding(ring)).count() % 2 == 1
}

proptest! {
    #![proptest_config(rules())]

    #[test]
    fn each_position_is_in_one_area_with_a_group_of_its_own(
        division in divisions(),
        position in positions(),
    ) {
        let areas: Vec<Area> = division.areas().collect();
        let groups: BTreeSet<u32> =
            areas.iter().map(|area| division.group_of(*area).unwrap().number()).collect();
        prop_assert_eq!(groups.len(), areas.len());
        prop_assert!(groups.iter().all(|group| (100..500).contains(group)));
        let area = division.area_at(position);
        prop_assert!(areas.contains(&area));
        prop_assert_eq!(division.group_of(area), Some(division.group_at(position)));
        let text = area.to_string();
        prop_assert_eq!(text.parse(), Ok(area));
    }

    #[test]
    fn an_area_has_what_lies_in_its_bounds(division in divisions(), position in positions()) {
        let inside = |axis: usize| OVER.from[axis] <= position[axis] && position[axis] < OVER.to[axis];
        let area = division.area_at(position);
        let Rect { from, to } = division.bounds(area);
        let is_bounded = (0..2).all(|axis| from[axis] <= position[axis] && position[axis] <= to[axis]);
        match &division.ground {
            Ground::Polygons(polygons) => {
                let of = polygons.iter().filter(|polygon| is_in(polygon, position));
                let of: Vec<&Polygon> = of.collect();
                prop_assert!(of.len() <= 1);
                let own = &polygons[area.cell_number() as usize];
                prop_assert!(of.is_empty() || of == [own] && is_bounded);
            }
            _ => prop_assert!(is_bounded || !(inside(0) && inside(1))),
        }
    }

    #[test]
    fn whoever_is_within_the_radius_is_heard_at_its_level(
        division in divisions(),
        here in positions(),
        (angle, share) in (0.0..std::f64::consts::TAU, 0.0..1.0_f64),
    ) {
        let rings = [Ring { radius: 8.0, level: 2 }, Ring { radius: 31.0, level: 0 }];
        let far = share * 31.0;
        let there = [here[0] + far * angle.cos(), here[1] + far * angle.sin()];
        if let Ground::Polygons(polygons) = &division.ground {
            // What is in none belongs to the nearest one, however far that is.
            prop_assume!(polygons.iter().any(|polygon| is_in(polygon, there)));
        }
        let heard = division.near(here, &rings);
        let near = heard.get(&division.group_at(there)).copied();
        let wanted = if far <= 8.0 { 2 } else { 0 };
        prop_assert!(near.is_some_and(|near| near.level.0 >= wanted), "{:?}", near);
        // Nobody in an area is nearer than it is, but for what rounding brings.
        prop_assert!(near.is_some_and(|near| near.distance <= far + 1e-9), "{:?}", near);
        if let Some(own) = heard.get(&division.group_at(here)) {
            prop_assert!(heard.values().all(|near| own.distance <= near.distance + 1e-9));
        }
    }

    #[test]
    fn a_crowd_that_stays_leaves_the_division_as_it_is(
        ground in grounds(),
        crowd in prop::collection::vec(positions(), 0..60),
        split_above in 2..20_u32,
    ) {
        let rules = Rules { split_above, merge_below: split_above / 2, deepest: 4 };
        let mut division = Division::new(ground, 0, 300).unwrap();
        let mut crowds = Crowds::default();
        let (mut changes, mut quiet) = (0, 0);
        while quiet < 20 {
            let mut there = BTreeMap::new();
            crowd.iter().for_each(|at| *there.entry(division.area_at(*at)).or_default() += 1);
            match crowds.look(&division, &there, &rules) {
                Some(next) => {
                    next.check().unwrap();
                    // What is merged was not split before, and the other way round.
                    prop_assert!(division.splits.keys().all(|area| next.splits.contains_key(area)));
                    (division, changes, quiet) = (next, changes + 1, 0);
                }
                None => quiet += 1,
            }
            prop_assert!(changes <= 4, "each change goes a quarter deeper");
        }
    }

    #[test]
    fn what_is_told_is_read_as_it_was(division in divisions()) {
        let areas = Areas::new(division, vec![Ring { radius: 3.0, level: 1 }], None).unwrap();
        prop_assert_eq!(Areas::from_text(areas.to_text().as_bytes()), Ok(areas));
    }
}

#[test]
fn positions_that_are_no_numbers_have_an_area_too() {
    for ground in [
        Ground::Grid { size: 10.0, over: OVER },
        Ground::Hex { size: 10.0, over: OVER },
        polygons(),
    ] {
        let division = Division::new(ground, 0, 300).unwrap();
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN] {
            for position in [[number, 40.0], [40.0, number], [number, number]] {
                let area = division.area_at(position);
                assert!(division.areas().any(|one| one == area), "{position:?}");
                let near = division.near(position, &[Ring { radius: 1.0, level: 0 }]);
                assert!(near.len() < 300, "{position:?}");
            }
        }
    }
}

#[test]
fn crowds_in_areas_that_are_not_there_split_nothing() {
    let ground = Ground::Grid { size: 50.0, over: OVER };
    let mut division = Division::new(ground, 0, 100).unwrap();
    division.splits.insert(Area::cell(1), [50, 51, 52, 53]);
    let rules = Rules { split_above: 2, merge_below: 0, deepest: 8 };
    let mut crowds = Crowds::default();
    // As somebody may say who lies.
    let false_areas = ["99", "4294967295", "1", "2.3", "1.0.1", "99.1.1.1.1.1.1.1.1"];
    let crowd = false_areas.iter().map(|area| (area.parse().unwrap(), 9)).collect();
    assert!((0..9).all(|_| crowds.look(&division, &crowd, &rules).is_none()));
    assert!(
        false_areas.iter().skip(3).all(|area| division.group_of(area.parse().unwrap()).is_none())
    );
}

#[test]
fn what_cannot_be_divided_says_why() {
    let grid = |size| Ground::Grid { size, over: OVER };
    let refused = |ground, groups| Division::new(ground, 0, groups).unwrap_err().to_string();
    assert!(refused(grid(0.0), 9).contains("a length above 0"));
    assert!(refused(grid(f64::NAN), 9).contains("a length above 0"));
    assert!(refused(grid(1.0), 9).contains("there are 7035 areas, and 9 groups"));
    assert!(refused(grid(1e-9), 9).contains("65536 groups"));
    assert!(refused(grid(50.0), 0).contains("choose another channel"));
    assert!(refused(Ground::Polygons(Vec::new()), 9).contains("at least one polygon"));
    let turned = Rect { from: OVER.to, to: OVER.from };
    assert!(refused(Ground::Hex { size: 1.0, over: turned }, 9).contains("north-east"));

    let whole = Division::new(grid(50.0), 0, 100).unwrap();
    let split = |area: &str, groups| {
        let mut division = whole.clone();
        division.splits.insert(area.parse().unwrap(), groups);
        division.check()
    };
    assert_eq!(split("1", [50, 51, 52, 53]), Ok(()));
    for (area, groups) in [
        ("1", [5, 51, 52, 53]),
        ("1", [50, 50, 52, 53]),
        ("1", [97, 98, 99, 100]),
        ("99", [50, 51, 52, 53]),
        ("1.2", [50, 51, 52, 53]),
    ] {
        assert!(matches!(split(area, groups), Err(AreasError::Split(_))), "{area} {groups:?}");
    }
    let ring = |radius, level| Ring { radius, level };
    for rings in [
        vec![],
        vec![ring(1.0, 0), ring(2.0, 1)],
        vec![ring(2.0, 1), ring(1.0, 0)],
        vec![ring(-1.0, 0)],
    ] {
        assert_eq!(Areas::new(whole.clone(), rings, None), Err(AreasError::Rings));
    }
    let flapping = Rules { split_above: 10, merge_below: 6, deepest: 2 };
    let refused = Areas::new(whole, vec![ring(1.0, 0)], Some(flapping)).unwrap_err();
    assert!(refused.to_string().contains("merge below half"), "{refused}");
}

#[cfg(feature = "geojson")]
mod geojson {
    use super::*;

    fn collection(rings: &[&str]) -> String {
        let features = rings.iter().enumerate().map(|(number, ring)| {
            format!(
                r#"{{"type":"Feature","properties":{{"name":"area {number}"}},
                    "geometry":{{"type":"Polygon","coordinates":[{ring}]}}}}"#
            )
        });
        let features: Vec<String> = features.collect();
        format!(r#"{{"type":"FeatureCollection","features":[{}]}}"#, features.join(","))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..rules() })]

        #[test]
        fn no_polygons_make_anything_panic(
            rings in prop::collection::vec(
                prop::collection::vec((-4..4_i8, -4..4_i8), 0..9), 0..4),
            scale in prop::sample::select(vec![1.0, 0.1, 1e-300, 1e8]),
        ) {
            let corner = |(x, y): &(i8, i8)| {
                format!("[{:?},{:?}]", f64::from(*x) * scale, f64::from(*y) * scale)
            };
            let ring = |ring: &Vec<(i8, i8)>| {
                let corners: Vec<String> = ring.iter().chain(ring.first()).map(corner).collect();
                format!("[{}]", corners.join(","))
            };
            let rings: Vec<String> = rings.iter().map(ring).collect();
            let rings: Vec<&str> = rings.iter().map(String::as_str).collect();
            if let Ok(ground) = Ground::from_geojson(&collection(&rings)) {
                let division = Division::new(ground, 0, 9).unwrap();
                let at = division.group_at([0.3 * scale, 0.2 * scale]);
                let reach = [Ring { radius: 9.0 * scale, level: 0 }];
                prop_assert!(division.near([0.0; 2], &reach).contains_key(&at));
            }
        }
    }

    const WEST: &str = "[[0,0],[10,0],[10,10],[0,10],[0,0]]";
    const EAST: &str = "[[10,0],[20,0],[20,10],[10,10],[10,0]]";

    #[test]
    fn neighbours_may_share_an_edge() {
        let ground = Ground::from_geojson(&collection(&[WEST, EAST])).unwrap();
        let Ground::Polygons(polygons) = &ground else { panic!("{ground:?}") };
        assert_eq!(polygons[1].name, "area 1");
        assert_eq!(polygons[0].rings, [[[0.0, 0.0], [10.0, 0.0], [10.0, 10.0], [0.0, 10.0]]]);
        let division = Division::new(ground, 7, 2).unwrap();
        assert_eq!(division.group_at([9.0, 5.0]).number(), 7);
        assert_eq!(division.group_at([11.0, 5.0]).number(), 8);
        assert_eq!(division.group_at([99.0, 5.0]).number(), 8, "the nearest one");
    }

    #[test]
    fn what_is_no_division_says_which_polygon() {
        let refused = |text: &str| Ground::from_geojson(text).unwrap_err().to_string();
        let bow = "[[0,0],[10,10],[10,0],[0,10],[0,0]]";
        let crossing = refused(&collection(&[EAST, bow]));
        assert!(crossing.starts_with("polygon 1: "), "{crossing}");
        let over = "[[5,5],[15,5],[15,15],[5,15],[5,5]]";
        assert!(refused(&collection(&[WEST, over])).starts_with("polygon 0 and polygon 1 overlap"));
        let inner = "[[2,2],[3,2],[3,3],[2,3],[2,2]]";
        assert!(
            refused(&collection(&[WEST, inner])).starts_with("polygon 0 and polygon 1 overlap")
        );
        assert!(refused(&collection(&[WEST, WEST])).contains("overlap"));
        assert!(refused("{").starts_with("the GeoJSON: "));
        let point = r#"{"type":"Point","coordinates":[1,2]}"#;
        assert!(refused(point).contains("feature 0: it is no Polygon"));
        let short = collection(&["[[0,0],[1,1]]"]);
        assert!(refused(&short).contains("0: "), "{}", refused(&short));
        assert!(refused(&collection(&[])).contains("at least one polygon"));
    }
}
