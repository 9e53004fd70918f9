//! What a relay and its participant tell each other about the path between them.

use super::{COMTREE, Case, SESSION, altered, case, malformed, written};
use canopy_wire::{Asked, Bound, HEADER_LEN, Probe, Report, Thinning, Traffic};

const TRAFFIC: Traffic = Traffic { datagrams: 300, bytes: 70_000 };

fn probe() -> Vec<u8> {
    let because = Bound::Path;
    let thinning = Thinning { share: 250, left_out: 90, budget_bits: 1_000_000, because };
    let probe = Probe { number: 7, clock: 1 << 31, sent: TRAFFIC, thinning };
    written(|out| probe.encode(COMTREE, SESSION, out))
}

fn report() -> Vec<u8> {
    let asked = Asked { updates: 500, bits: 1 << 40 };
    let (clock, own_clock, held) = (1 << 31, 12, 16_667);
    let report = Report { number: 7, clock, own_clock, held, received: TRAFFIC, asked };
    written(|out| report.encode(COMTREE, SESSION, out))
}

pub(crate) fn path_cases() -> Vec<Case> {
    let longer = |packet| [packet, vec![1, 2, 3]].concat();
    vec![
        case(
            probe(),
            "Probe, comtree 9, session 70007, number 7, 300 datagrams sent, 25.0 % of updates, \
             budget 1000000 bit/s by path",
            &[
                ("canopy.kind", "0x28"),
                ("canopy.probe.number", "7"),
                ("canopy.probe.clock", "2147483648"),
                ("canopy.traffic.datagrams", "300"),
                ("canopy.traffic.bytes", "70000"),
                ("canopy.probe.share", "250"),
                ("canopy.probe.because", "3"),
                ("canopy.reserved", "00"),
                ("canopy.probe.left_out", "90"),
                ("canopy.probe.budget", "1000000"),
            ],
        ),
        case(
            longer(report()),
            "Report, comtree 9, session 70007, number 7, 300 datagrams received",
            &[
                ("canopy.kind", "0x29"),
                ("canopy.probe.number", "7"),
                ("canopy.report.own_clock", "12"),
                ("canopy.report.held", "16667"),
                ("canopy.report.updates", "500"),
                ("canopy.report.bits", "1099511627776"),
                ("canopy.ignored", "010203"),
            ],
        ),
    ]
}

pub(crate) fn malformed_path_cases() -> Vec<Case> {
    const SHARE_AT: usize = HEADER_LEN + 16;
    vec![malformed(
        altered(probe(), SHARE_AT, 4),
        "Probe, comtree 9, session 70007, number 7, 300 datagrams sent, 127.4 % of updates, \
         budget 1000000 bit/s by path",
        "a share of 1274",
    )]
}
