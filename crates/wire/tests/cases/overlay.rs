//! What relays tell each other over a link. On the wire it is sealed; the dissector reads it as its
//! receiver does once it is opened.

use super::{COMTREE, Case, ELSEWHERE, SENDER, altered, case, malformed, written};
use canopy_wire::{HEADER_LEN, LinkHello, RouteReply, WaySearch, WayWord};

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
    ]
}
