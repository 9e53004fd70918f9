//! What relays tell each other over a link. On the wire it is sealed; the dissector reads it as its
//! receiver does once it is opened.

use super::{COMTREE, Case, ELSEWHERE, SENDER, altered, case, malformed, written};
use canopy_wire::{HEADER_LEN, LinkHello, RouteReply};

fn link_hello() -> Vec<u8> {
    let (loss, lifetime) = (0x1fff, 60_000);
    let hello = LinkHello { stamp: 1 << 40, echo: 77, held: 300, sent: 70, loss, lifetime };
    written(|out| hello.encode(out))
}

fn route_reply(is_there: bool) -> Vec<u8> {
    let reply = RouteReply { to: SENDER, about: ELSEWHERE, is_there, hops: 30 };
    written(|out| reply.encode(COMTREE, out))
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
    ]
}
