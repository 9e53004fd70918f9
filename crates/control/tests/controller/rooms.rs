//! A relay carries so many comtrees and no more.

use crate::bed::{Bed, SQUARE, limits, new_relay, new_world, world};
use canopy_control::{Account, Admission, Enter, Name, NewRelay, Refusal, RelayId, TreeAsk};

/// A relay registers again, and carries so many comtrees from now on.
fn resize(bed: &mut Bed, at: u16, comtrees: u32) {
    let new = NewRelay { comtrees, places: 9, ..new_relay(at, 10_000_000) };
    bed.controller.register(bed.now, new).unwrap();
}

/// Somebody enters a world that may be new, next to these relays.
fn enter(bed: &mut Bed, name: &str, near: &[usize]) -> Result<Admission, Refusal> {
    let name = Name::new(name).unwrap();
    if bed.controller.world(&name).is_err() {
        bed.controller.create_world(new_world(name.clone())).unwrap();
    }
    let measured = near.iter().zip(1..).map(|(at, far)| (bed.relays[*at].0, far * 1000));
    let owner = [bed.controller.members().count() as u8; 16];
    let ask = Enter::new(name, owner, measured.collect());
    bed.controller.enter(bed.now, &Enter { limits: Some(limits(1000, 1000)), ..ask })
}

/// How many comtrees a relay has room for, and how many of these it has.
fn comtrees(bed: &Bed, at: u16) -> (f64, f64) {
    let of_relay = Account::Comtrees(RelayId(at + 1));
    let mut accounts = bed.controller.accounts();
    let (_, most, reserved) = accounts.find(|(account, ..)| *account == of_relay).unwrap();
    (most.bits, reserved.bits)
}

#[test]
fn a_relay_that_has_its_comtrees_refuses_the_next_and_says_so() {
    let mut bed = Bed::new(2, 10_000_000, &[(0, 1, 1000)]);
    resize(&mut bed, 0, 2);
    let [first, _] = ["w", "x"].map(|name| enter(&mut bed, name, &[0]).unwrap());
    bed.exchange();
    assert_eq!(comtrees(&bed, 0), (2.0, 2.0));
    assert_eq!(
        enter(&mut bed, "y", &[0]),
        Err(Refusal::Full {
            what: "the room for comtrees of r0".to_owned(),
            asked: "1 comtree".to_owned(),
            free: "0 comtrees".to_owned(),
        })
    );
    // Whoever is near another relay gets that, and worlds that are there take others.
    assert_eq!(enter(&mut bed, "y", &[0, 1]).unwrap().relay, RelayId(2));
    assert_eq!(enter(&mut bed, "x", &[0]).unwrap().relay, RelayId(1));
    assert_eq!(bed.controller.audit(), Ok(()));
    // It has room again when a world has left, also if another controller has started.
    bed.controller.leave(first.world, first.address).unwrap();
    bed.exchange();
    bed.start_again();
    bed.exchange();
    assert_eq!(comtrees(&bed, 0), (2.0, 1.0));
    assert_eq!(enter(&mut bed, "z", &[0]).unwrap().relay, RelayId(1));
    bed.exchange();
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn a_world_of_which_one_comtree_finds_no_room_gets_none() {
    let mut bed = Bed::new(1, 10_000_000, &[]);
    resize(&mut bed, 0, 3);
    let name = Name::new("x").unwrap();
    let new = |name| canopy_control::NewWorld { comtrees: 2, ..new_world(name) };
    bed.controller.create_world(new(name)).unwrap();
    bed.controller.create_world(new(Name::new("y").unwrap())).unwrap();
    enter(&mut bed, "x", &[0]).unwrap();
    assert!(matches!(enter(&mut bed, "y", &[0]), Err(Refusal::Full { .. })));
    assert_eq!(comtrees(&bed, 0), (3.0, 2.0));
    assert_eq!(bed.controller.audit(), Ok(()));
}

#[test]
fn trees_go_round_a_relay_that_has_its_comtrees() {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    resize(&mut bed, 1, 1);
    let other = enter(&mut bed, "x", &[1]).unwrap();
    // The way over r1 is shorter.
    [0, 2].iter().for_each(|at| _ = enter(&mut bed, "w", &[*at]).unwrap());
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [3, 4]);
    bed.controller.move_world(&world(), TreeAsk::default()).unwrap();
    bed.exchange();
    assert_eq!(bed.links_of_tree(), [3, 4]);
    let root = Some(RelayId(2));
    let ask = TreeAsk { root, ..TreeAsk::default() };
    let refusal = bed.controller.move_world(&world(), ask).unwrap_err().to_string();
    assert!(refusal.contains("r1 has no room for another comtree"), "{refusal}");
    // There is no other way than over r1.
    bed.set_link(4, [3, 0], false);
    bed.exchange();
    let comtree = bed.controller.world(&world()).unwrap().comtrees[0];
    assert!(bed.controller.why(comtree).unwrap().1.is_some(), "it is in two parts");
    assert_eq!((comtrees(&bed, 1), bed.controller.audit()), ((1.0, 1.0), Ok(())));
    bed.controller.leave(other.world, other.address).unwrap();
    bed.exchange();
    // It is mended when something changes that it may run over.
    for up in [false, true] {
        bed.set_link(2, [1, 2], up);
        (0..10).for_each(|_| _ = bed.exchange());
    }
    assert_eq!((bed.links_of_tree(), bed.controller.audit()), (vec![1, 2], Ok(())));
}

#[test]
fn a_move_has_its_room_from_the_beginning() {
    let mut bed = Bed::new(4, 10_000_000, &SQUARE);
    resize(&mut bed, 1, 1);
    let other = enter(&mut bed, "x", &[1]).unwrap();
    [0, 2].iter().for_each(|at| _ = enter(&mut bed, "w", &[*at]).unwrap());
    bed.exchange();
    bed.controller.leave(other.world, other.address).unwrap();
    bed.exchange();
    bed.waits = true;
    bed.controller.move_world(&world(), TreeAsk::default()).unwrap();
    bed.exchange();
    let comtree = bed.controller.world(&world()).unwrap().comtrees[0];
    assert!(bed.controller.is_moving(comtree));
    assert!(matches!(enter(&mut bed, "x", &[1]), Err(Refusal::Full { .. })));
    assert_eq!((comtrees(&bed, 3), bed.controller.audit()), ((1024.0, 1.0), Ok(())));
    bed.waits = false;
    (0..10).for_each(|_| _ = bed.exchange());
    assert_eq!((bed.links_of_tree(), comtrees(&bed, 3)), (vec![1, 2], (1024.0, 0.0)));
    assert_eq!((comtrees(&bed, 1), bed.controller.audit()), ((1.0, 1.0), Ok(())));
}
