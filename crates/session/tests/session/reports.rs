//! A participant answers probes, tells what it asks for, and hears of its thinning.

use crate::support::{COMTREE, ID, Pair, packet};
use canopy_session::{Event, State};
use canopy_wire::{
    Asked, Bound, Group, Kind, Probe, Record, Report, Thinning, Time, Traffic, encode_update,
};
use std::time::Duration;

fn probe(number: u32, share: u16, left_out: u32) -> Probe {
    let thinning = Thinning { share, left_out, budget_bits: 1_000, because: Bound::Path };
    Probe { number, clock: 77, sent: Traffic::default(), thinning }
}

/// The reports among what the session sends now.
fn reports(pair: &mut Pair, now: Time) -> Vec<Report> {
    let packets = pair.packets(now);
    let packets = packets.iter().map(|datagram| packet(datagram));
    let reports = packets.filter(|packet| packet.header().kind == Kind::Report);
    reports.map(|packet| Report::decode(&packet).unwrap()).collect()
}

fn hear(pair: &mut Pair, now: Time, probe: Probe) {
    pair.say(now, |out| probe.encode(COMTREE, ID, out));
}

fn thinned(pair: &mut Pair) -> Vec<(u16, u32)> {
    let told = pair.events().into_iter().filter_map(|event| match event {
        Event::Thinned(thinning) => Some((thinning.share, thinning.left_out)),
        _ => None,
    });
    told.collect()
}

#[test]
fn a_probe_is_answered_at_once_and_once() {
    let (mut pair, now) = Pair::connected();
    reports(&mut pair, now);
    let mut update = [0; 200];
    let header = canopy_wire::Header::new(Kind::Updates, ID, COMTREE);
    let record = Record::new(Group::new(7).address(), 0, b"some bytes");
    let len = encode_update(&header, &record, &mut update).unwrap();
    pair.say(now, |out| {
        out[..len].copy_from_slice(&update[..len]);
        Ok(len)
    });
    let at = now + Duration::from_millis(3);
    pair.session.may_have_waited(Duration::from_millis(16));
    hear(&mut pair, at, probe(1, 1000, 0));
    assert_eq!(pair.session.poll_timeout(), Some(Time::ZERO), "due at once");
    let said = reports(&mut pair, at + Duration::from_millis(9));
    assert_eq!(said.len(), 1);
    let Report { number, clock, own_clock, held, received, asked } = said[0];
    assert_eq!(held, 16_000);
    assert_eq!((number, clock, asked), (1, 77, Asked::default()));
    assert_eq!(
        own_clock,
        (at.as_nanos() / 1000) as u32,
        "when it arrived, not when it was answered"
    );
    assert_eq!((received.datagrams, received.bytes as usize), (1, len + 16));
    assert!(reports(&mut pair, at + Duration::from_millis(10)).is_empty());
}

#[test]
fn what_is_asked_for_is_told_unasked_and_again_in_the_next_session() {
    let (mut pair, now) = Pair::connected();
    hear(&mut pair, now, probe(5, 1000, 0));
    assert_eq!(reports(&mut pair, now).len(), 1);
    let asked = Asked { updates: 20, bits: 64_000 };
    pair.session.ask_for(asked);
    let said = reports(&mut pair, now);
    assert_eq!(said.iter().map(|one| (one.number, one.asked)).collect::<Vec<_>>(), [(5, asked)]);
    pair.session.ask_for(asked);
    assert!(reports(&mut pair, now).is_empty(), "nothing new");
    pair.session.ask_for(Asked::default());
    assert_eq!(reports(&mut pair, now)[0].asked, Asked::default());
}

#[test]
fn a_wish_before_the_first_probe_has_no_number() {
    let (mut pair, now) = Pair::connected();
    pair.session.ask_for(Asked { updates: 0, bits: 1 });
    let said = reports(&mut pair, now);
    assert_eq!((said[0].number, said[0].clock, said[0].asked.bits), (0, 0, 1));
    pair.session.leave();
    pair.session.ask_for(Asked { updates: 0, bits: 2 });
    assert_eq!(pair.session.state(), State::Leaving);
    assert!(reports(&mut pair, now).is_empty());
}

#[test]
fn thinning_is_told_when_it_changes_and_once_a_second_at_most() {
    let (mut pair, now) = Pair::connected();
    let at = |millis: u64| now + Duration::from_millis(millis);
    assert_eq!(pair.session.thinning(), None);
    hear(&mut pair, at(0), probe(1, 1000, 0));
    assert_eq!(thinned(&mut pair), [], "everything is sent");
    hear(&mut pair, at(100), probe(2, 500, 10));
    assert_eq!(thinned(&mut pair), [(500, 10)]);
    hear(&mut pair, at(200), probe(3, 300, 20));
    hear(&mut pair, at(300), probe(4, 200, 30));
    assert_eq!(thinned(&mut pair), [], "it was told a moment ago");
    assert_eq!(pair.session.thinning().map(|one| one.share), Some(200));
    hear(&mut pair, at(1100), probe(5, 210, 5));
    assert_eq!(thinned(&mut pair), [(210, 55)], "with all that was left out since");
    hear(&mut pair, at(3000), probe(6, 220, 5));
    assert_eq!(thinned(&mut pair), [], "it is much as before");
    hear(&mut pair, at(5000), probe(7, 1000, 0));
    assert_eq!(thinned(&mut pair), [(1000, 5)], "it is over");
}
