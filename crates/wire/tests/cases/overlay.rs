//! What relays tell each other over a link. On the wire it is sealed; the dissector reads it as its
//! receiver does once it is opened.

use super::{COMTREE, Case, ELSEWHERE, SENDER, altered, case, malformed, written};
use canopy_wire::{
    HEADER_LEN, LinkDetail, LinkHello, LinkList, LinkState, LinkStateAck, LinkStateId, RouteReply,
    WaySearch, WayWord,
};

fn link_hello() -> Vec<u8> {
    let (loss, lifetime) = (0x1fff, 60_000);
    let hello = LinkHello { stamp: 1 << 40, echo: 77, held: 300, sent: 70, loss, lifetime };
    written(|out| hello.encode(out))
}

fn route_reply(is_there: bool) -> Vec<u8> {
    let reply = RouteReply { to: SENDER, about: ELSEWHERE, is_there, hops: 30 };
    written(|out| reply.encode(COMTREE, out))
}

fn way_search(word: WayWord) -> Vec<u8> {
    let search = WaySearch { seeker: 12, number: 3, word, hops: 60 };
    written(|out| search.encode(COMTREE, out))
}

const STATE: LinkStateId =
    LinkStateId { relay: super::RELAY_KEY, part: 1, life: 1 << 40, number: 3 };

fn link_state(links: LinkList<'_>) -> Vec<u8> {
    let (age, distance, free_kbit) = (5, 2, 90_000);
    let state = LinkState { id: STATE, age, distance, free_kbit, name: "eu-1", links };
    written(|out| state.encode(out))
}

fn detailed() -> Vec<u8> {
    let link = |link, is_up| LinkDetail { link, is_up, delay_us: 4_000, loss: 9, free_kbit: 70 };
    let links: Vec<u8> =
        [link(7, true), link(8, false)].iter().flat_map(LinkDetail::to_bytes).collect();
    link_state(LinkList::Detailed(&links))
}

fn summary() -> Vec<u8> {
    link_state(LinkList::Summary(&[0, 0, 0, 7, 0, 0, 1, 0]))
}

fn link_state_ack(count: usize) -> Vec<u8> {
    written(|out| LinkStateAck::encode(&vec![(STATE, 2); count], out))
}

pub(crate) fn overlay_cases() -> Vec<Case> {
    let longer = |packet| [packet, vec![1, 2, 3]].concat();
    vec![
        case(
            link_hello(),
            "Link-hello, comtree 0, stamp 1099511627776, echo 77 after 300 µs, 70 packets sent, \
             loss 12.5 %",
            &[
                ("canopy.kind", "0x09"),
                ("canopy.class", "1"),
                ("canopy.session", "16777215"),
                ("canopy.stamp", "1099511627776"),
                ("canopy.link_hello.echo", "77"),
                ("canopy.link_hello.held", "300"),
                ("canopy.link_hello.sent", "70"),
                ("canopy.link_hello.loss", "8191"),
                ("canopy.link_hello.lifetime", "60000"),
                ("canopy.ignored", ""),
            ],
        ),
        case(
            route_reply(true),
            "Route-reply, comtree 9, to 1.2 about 2.7: this way leads there",
            &[
                ("canopy.kind", "0x08"),
                ("canopy.hop_limit", "30"),
                ("canopy.route_reply.to", "0x00010002"),
                ("canopy.route_reply.about", "0x00020007"),
                ("canopy.route_reply.answer", "1"),
            ],
        ),
        case(
            longer(route_reply(false)),
            "Route-reply, comtree 9, to 1.2 about 2.7: nobody has it",
            &[("canopy.route_reply.answer", "0"), ("canopy.ignored", "010203")],
        ),
        case(
            way_search(WayWord::Ask),
            "Way-search, comtree 9, search 3 of 12 asks",
            &[
                ("canopy.kind", "0x0a"),
                ("canopy.hop_limit", "60"),
                ("canopy.way_search.seeker", "12"),
                ("canopy.way_search.number", "3"),
                ("canopy.way_search.word", "0"),
            ],
        ),
        case(
            way_search(WayWord::Answer(1 << 33)),
            "Way-search, comtree 9, search 3 of 12 is answered by 8589934592",
            &[("canopy.way_search.answer", "8589934592")],
        ),
        case(
            way_search(WayWord::Taken(7)),
            "Way-search, comtree 9, search 3 of 12 is answered by 7, which is taken",
            &[("canopy.way_search.word", "2"), ("canopy.way_search.answer", "7")],
        ),
        case(
            way_search(WayWord::Ended(7)),
            "Way-search, comtree 9, search 3 of 12 was answered by 7, which has ended",
            &[("canopy.way_search.word", "3")],
        ),
    ]
}

/// What relays say of their links.
pub(crate) fn link_state_cases() -> Vec<Case> {
    vec![
        case(
            detailed(),
            "Link-state, comtree 0, number 3 of part 1 of eu-1, all of them: 2 links",
            &[
                ("canopy.kind", "0x0b"),
                ("canopy.hop_limit", "254"),
                ("canopy.link_state.relay", super::RELAY_KEY_HEX),
                ("canopy.link_state.life", "1099511627776"),
                ("canopy.link_state.age", "5"),
                ("canopy.link_state.free", "90000"),
                ("canopy.link_state.name", "eu-1"),
                ("canopy.link_state.link", "7|8"),
                ("canopy.link_state.up", "1|0"),
                ("canopy.link_state.delay", "4000|4000"),
                ("canopy.link_state.loss", "9|9"),
                ("canopy.link_state.link_free", "70|70"),
            ],
        ),
        case(
            summary(),
            "Link-state, comtree 0, number 3 of part 1 of eu-1, those that are up: 2 links",
            &[("canopy.link_state.link", "7|256"), ("canopy.link_state.up", "")],
        ),
        case(
            link_state_ack(2),
            "Link-state-ack, comtree 0, 2 states",
            &[("canopy.kind", "0x0c"), ("canopy.link_state.held", "2|2")],
        ),
    ]
}

pub(crate) fn malformed_overlay_cases() -> Vec<Case> {
    let [to_at, about_at, answer_at] = [0, 4, 8].map(|at| HEADER_LEN + at);
    let of = |at, value| altered(route_reply(true), at, value);
    vec![
        malformed(
            of(to_at, 0x80),
            "Route-reply, comtree 9, to group 65538 about 2.7: this way leads there",
            "a group in place of an address",
        ),
        malformed(
            of(about_at, 0x80),
            "Route-reply, comtree 9, to 1.2 about group 131079: this way leads there",
            "a group in place of an address",
        ),
        malformed(
            of(answer_at, 2),
            "Route-reply, comtree 9, to 1.2 about 2.7: unknown",
            "answer 2",
        ),
        malformed(
            link_hello()[..HEADER_LEN + 29].to_vec(),
            "Link-hello, comtree 0",
            "body of 29 bytes, needs 30",
        ),
        malformed(
            way_search(WayWord::Ask)[..HEADER_LEN + 14].to_vec(),
            "Way-search, comtree 9",
            "body of 14 bytes, needs 15",
        ),
        malformed(
            altered(way_search(WayWord::Ask), HEADER_LEN + 6, 4),
            "Way-search, comtree 9, search 3 of 12 says something unknown",
            "word 4",
        ),
        malformed(
            summary()[..HEADER_LEN + 53].to_vec(),
            "Link-state, comtree 0",
            "body of 53 bytes, needs 54",
        ),
        malformed(
            altered(summary(), HEADER_LEN + 47, 2),
            "Link-state, comtree 0, number 3 of part 1 of eu-1",
            "form 2",
        ),
        malformed(
            altered(summary(), HEADER_LEN + 52, 65),
            "Link-state, comtree 0, number 3 of part 1",
            "a name of 65 bytes",
        ),
        malformed(
            altered(summary(), HEADER_LEN + 57, 3),
            "Link-state, comtree 0, number 3 of part 1 of eu-1, those that are up: 3 links",
            "3 entries in 8 bytes",
        ),
        malformed(
            altered(detailed(), HEADER_LEN + 62, 2),
            "Link-state, comtree 0, number 3 of part 1 of eu-1, all of them: 2 links",
            "a link that is up by 2",
        ),
        malformed(
            altered(link_state_ack(2), HEADER_LEN, 25),
            "Link-state-ack, comtree 0",
            "25 states",
        ),
        malformed(
            altered(link_state_ack(2), HEADER_LEN, 3),
            "Link-state-ack, comtree 0, 3 states",
            "3 entries in 92 bytes",
        ),
    ]
}
