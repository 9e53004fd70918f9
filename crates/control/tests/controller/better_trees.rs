//! Better trees, which are looked for again and again.

use crate::bed::{Bed, SQUARE, limits, world};
use canopy_control::{Event, Explanation, Settings, TreeAsk};
use core::time::Duration;

#[test]
fn a_better_tree_is_taken_if_it_gains_enough_and_why_is_kept() {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    (0..4).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    bed.set_link(2, [1, 2], false);
    bed.exchange();
    let comtree = bed.controller.world(&world()).unwrap().comtrees[0];
    bed.set_link(2, [1, 2], true);
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 3, 4], "nothing is moved for nothing");
    let why = bed.controller.improve(comtree);
    assert!(why.starts_with("it is being improved: the tree will cost"), "{why}");
    let refusal = bed.controller.move_world(&world(), TreeAsk::default()).unwrap_err().to_string();
    assert!(refusal.contains("it is on its way to another tree; wait, or"), "{refusal}");
    assert_eq!(bed.links_of_tree(), [1, 3, 4], "one relay after the other");
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
    let why = bed.controller.why(comtree).unwrap().0;
    assert!(why.starts_with("it was improved: the tree costs"), "{why}");
    assert!(bed.controller.is_settled());
    let why = bed.controller.improve(comtree);
    assert!(why.starts_with("it stays: the best tree found costs 0 % less, 15 %"), "{why}");
    let explained = bed.controller.explain(comtree).unwrap();
    assert_eq!(explained.kept, Some(why));
    assert!(explained.why.starts_with("it was improved"), "what made the tree is said still");
}

/// A square of which link 2 has failed and is back, so that its tree has this link in the place of that.
fn repaired(settings: Settings, other_way: u32) -> Bed {
    let mut links = SQUARE;
    links[3].2 = other_way;
    let settings = Settings { lease: Duration::from_secs(3600), ..settings };
    let mut bed = Bed::with(settings, 4, 10_000_000, &links);
    (0..4).for_each(|at| _ = bed.enter(at as u8, &[at], limits(1000, 1000)).unwrap());
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [1, 2, 3]);
    for up in [false, true] {
        bed.set_link(2, [1, 2], up);
        bed.exchange();
    }
    assert_eq!(bed.links_of_tree(), [1, 3, 4]);
    bed
}

impl Bed {
    /// Why trees were reshaped within so long, and when, counted from now in half seconds.
    fn reshaped_within(&mut self, time: Duration) -> Vec<(u32, String)> {
        let looks = (time.as_millis() / 500) as u32;
        let mut reshaped = Vec::new();
        for look in 0..looks {
            let why = |event| match event {
                Event::Reshaped { why, .. } => Some((look, why)),
                _ => None,
            };
            reshaped.extend(self.exchange().into_iter().filter_map(why));
        }
        reshaped
    }

    fn explain(&self) -> Explanation {
        let comtree = self.controller.world(&world()).unwrap().comtrees[0];
        self.controller.explain(comtree).unwrap()
    }
}

#[test]
fn a_comtree_returns_from_the_tree_of_a_repair_within_the_period_and_not_before() {
    let mut bed = repaired(Settings::default(), 5_000);
    let period = Settings::default().improve;
    let reshaped = bed.reshaped_within(period - Duration::from_secs(3));
    assert_eq!(reshaped, [], "it was repaired just before");
    let reshaped = bed.reshaped_within(Duration::from_secs(5));
    let [(_, why)] = &reshaped[..] else { panic!("{reshaped:?}") };
    assert!(why.starts_with("it was improved: the tree costs"), "{why}");
    assert_eq!((bed.links_of_tree(), &bed.explain().why), (vec![1, 2, 3], why));
    assert_eq!(bed.reshaped_within(3 * period), [], "there is nothing better");
    let kept = bed.explain().kept.unwrap();
    assert!(kept.starts_with("it stays: the best tree found costs 0 % less"), "{kept}");
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_gain_below_the_least_moves_nothing_and_no_period_looks_for_nothing() {
    let period = Settings::default().improve;
    let mut bed = repaired(Settings::default(), 1_300);
    assert_eq!(bed.reshaped_within(2 * period), []);
    assert_eq!(bed.links_of_tree(), [1, 3, 4]);
    let Explanation { why, kept, .. } = bed.explain();
    assert_eq!(why, "a link or relay of its tree failed", "what made the tree is said still");
    let kept = kept.unwrap();
    let share = kept.strip_prefix("it stays: the best tree found costs ");
    let share = share.and_then(|rest| rest.strip_suffix(" % less, 15 % are asked for"));
    let share: f64 = share.unwrap_or_else(|| panic!("{kept}")).parse().unwrap();
    assert!(share > 1.0 && share < 15.0, "{kept}");

    let never = Settings { improve: Duration::ZERO, ..Settings::default() };
    let mut bed = repaired(never, 5_000);
    assert_eq!(bed.reshaped_within(2 * period), []);
    assert_eq!((bed.links_of_tree(), bed.explain().kept), (vec![1, 3, 4], None));
}

#[test]
fn a_comtree_whose_moves_end_before_their_end_waits_twice_as_long_each_time() {
    let settings = Settings { improve: Duration::from_secs(5), ..Settings::default() };
    let mut bed = repaired(settings, 5_000);
    bed.stays_put = true;
    let reshaped = bed.reshaped_within(Duration::from_secs(80));
    let whys = reshaped.iter().all(|(_, why)| why.starts_with("a move ended before its end"));
    assert!(whys && reshaped.len() == 4, "{reshaped:?}");
    let waited: Vec<u32> = reshaped.windows(2).map(|two| two[1].0 - two[0].0).collect();
    let are_doubled = waited.iter().zip([20, 40, 80]).all(|(at, of)| at.abs_diff(of) <= 4);
    assert!(are_doubled, "{waited:?} half seconds");
    bed.stays_put = false;
    let reshaped = bed.reshaped_within(Duration::from_secs(85));
    assert!(
        matches!(&reshaped[..], [(_, why)] if why.starts_with("it was improved")),
        "{reshaped:?}"
    );
}
