//! The live stream of one page: a greeting, then ten frames a second.

use super::Console;
use super::links::LinkLoads;
use super::rates::RelayRates;
use super::relays::{RelaysFrame, RelaysView};
use axum::response::sse::Event;
use canopy_bots::{Snapshot, Totals, Watch};
use futures_util::stream::{self, Stream};
use serde::Serialize;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Interval, MissedTickBehavior, interval};

const FRAME_EVERY: Duration = Duration::from_millis(100);

/// One page's stream. What it watches is watched until the page goes.
pub(super) struct Feed {
    console: Console,
    watch: Option<Watch>,
    frames: Interval,
    greeted: bool,
    /// How many of the controller's happenings the page has seen.
    seen: u64,
}

#[derive(Serialize)]
struct Frame {
    t: f64,
    avatars: Vec<(u32, f64, f64)>,
    viewer: Option<ViewerFrame>,
    /// How many bits a second everyone is sent at most; null: everything.
    everyone_bits: Option<u64>,
    crowd: Option<CrowdFrame>,
    /// The rates of all relays of a demo together.
    relay: Option<RelayRates>,
    net: Option<RelaysFrame>,
    links: Vec<LinkLoads>,
}

#[derive(Serialize)]
struct ViewerFrame {
    id: u32,
    x: f64,
    y: f64,
    /// The highest level that it has somewhere.
    level: u8,
    /// Column, row, level.
    cells: Vec<(i32, i32, u8)>,
    /// How many bits a second it is sent at most; null: everything.
    limit_bits: Option<u64>,
    received: Vec<ReceivedFrame>,
}

/// Walker, x, y, age in milliseconds when it came, level of the cell that it was heard in, milliseconds since
/// it came, updates of that walker a second.
type ReceivedFrame = (u32, f32, f32, f64, u8, f64, f64);

#[derive(Serialize)]
struct CrowdFrame {
    age_ms: AgeMs,
    pace: Pace,
    missing: u64,
    duplicates: u64,
    unexpected: u64,
    out_of_order: u64,
    updates_published: u64,
    deliveries: u64,
    deliveries_expected: u64,
}

#[derive(Clone, Copy, Serialize)]
struct AgeMs {
    p50: f64,
    p99: f64,
}

/// Whether updates arrive while they are worth something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Pace {
    OnTime,
    /// One can see it.
    Late,
    /// Nobody would want to be there.
    Overloaded,
    /// Everyone has a budget, so that what is far waits, and its age says nothing of the machine.
    Thinned,
}

impl Pace {
    /// From the ages of the last second. A relay that sends every tick may take one for it.
    fn of(age: AgeMs, tick_ms: u64) -> Pace {
        let tick = tick_ms as f64;
        let beyond = |p50, p99| age.p50 > p50 + tick || age.p99 > p99 + tick;
        if beyond(200.0, 500.0) {
            Pace::Overloaded
        } else if beyond(75.0, 200.0) {
            Pace::Late
        } else {
            Pace::OnTime
        }
    }
}

impl Feed {
    pub(super) fn new(console: Console, viewer: Option<u32>) -> Feed {
        let watch = console.crowd.as_ref().zip(viewer).map(|(view, viewer)| view.watch(viewer));
        let mut frames = interval(FRAME_EVERY);
        // A page that was asleep wants the present, not the past.
        frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Feed { console, watch, frames, greeted: false, seen: 0 }
    }

    pub(super) fn into_stream(self) -> impl Stream<Item = Result<Event, Infallible>> {
        stream::unfold(self, |mut feed| async move {
            let event = feed.next().await;
            Some((Ok(event), feed))
        })
    }

    async fn next(&mut self) -> Event {
        let event = if self.greeted {
            self.frames.tick().await;
            Event::default().event("frame").json_data(self.frame())
        } else {
            self.greeted = true;
            Event::default().event("hello").json_data(&self.console.hello)
        };
        // Numbers and strings always have a JSON form; a comment keeps the stream whole.
        event.unwrap_or_else(|_| Event::default().comment("frame lost"))
    }

    fn frame(&mut self) -> Frame {
        let tick_ms = self.console.hello.tick_ms;
        let snapshot = self.console.crowd.as_ref().map(|view| view.snapshot());
        let everyone_bits = self.console.crowd.as_ref().and_then(|view| view.limit_of_everyone());
        let relays = self.console.relays.as_ref();
        let look = relays.map(RelaysView::look);
        let lost = snapshot.as_ref().map_or(&[][..], |snapshot| &snapshot.lost);
        let seen = &mut self.seen;
        let net = relays.zip(look.as_ref()).map(|(relays, look)| relays.frame(look, lost, seen));
        Frame {
            t: self.console.started.elapsed().as_secs_f64(),
            viewer: self.viewer(snapshot.as_ref()),
            everyone_bits,
            crowd: snapshot
                .as_ref()
                .map(|snapshot| CrowdFrame::new(snapshot, tick_ms, everyone_bits)),
            avatars: snapshot.map(|snapshot| snapshot.avatars).unwrap_or_default(),
            relay: self.console.rates(look.as_ref()),
            links: self.console.links(look.as_ref()),
            net,
        }
    }

    fn viewer(&self, snapshot: Option<&Snapshot>) -> Option<ViewerFrame> {
        let watch = self.watch.as_ref()?;
        let now = snapshot?.now;
        let viewer = watch.viewer();
        let [x, y] = viewer.at?;
        let cells: Vec<_> =
            viewer.cells.iter().map(|(cell, level)| (cell.x, cell.y, level.0)).collect();
        let level = cells.iter().map(|(.., level)| *level).max().unwrap_or_default();
        let received = viewer.heard.iter().map(|(walker, heard)| {
            let (age, silent) = (heard.age.as_secs_f64(), now.since(heard.received).as_secs_f64());
            // Whoever falls silent has no rate for long.
            let rate = f64::from(heard.rate).min(1.0 / silent.max(1e-3));
            (*walker, heard.x, heard.y, age * 1000.0, heard.level.0, silent * 1000.0, rate)
        });
        let (id, limit_bits, received) = (watch.walker(), watch.limit(), received.collect());
        Some(ViewerFrame { id, x, y, level, cells, limit_bits, received })
    }
}

impl CrowdFrame {
    fn new(snapshot: &Snapshot, tick_ms: u64, everyone_bits: Option<u64>) -> CrowdFrame {
        let Totals { verdict, age_p50_us, age_p99_us } = snapshot.totals;
        let ms = |us: u64| us as f64 / 1000.0;
        let age_ms = AgeMs { p50: ms(age_p50_us), p99: ms(age_p99_us) };
        CrowdFrame {
            age_ms,
            pace: everyone_bits.map_or(Pace::of(age_ms, tick_ms), |_| Pace::Thinned),
            missing: verdict.missing,
            duplicates: verdict.duplicates,
            unexpected: verdict.unexpected,
            out_of_order: verdict.out_of_order,
            updates_published: verdict.published,
            // Like the expected ones, these count only updates that are old enough to be judged.
            deliveries: verdict.expected - verdict.missing,
            deliveries_expected: verdict.expected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_that_one_can_see_are_said() {
        for (p50, p99, tick_ms, expected) in [
            (1.0, 20.0, 0, Pace::OnTime),
            (30.0, 240.0, 0, Pace::Late),
            (90.0, 120.0, 0, Pace::Late),
            (90.0, 120.0, 50, Pace::OnTime),
            (270.0, 611.0, 0, Pace::Overloaded),
            (30.0, 900.0, 0, Pace::Overloaded),
        ] {
            assert_eq!(Pace::of(AgeMs { p50, p99 }, tick_ms), expected, "{p50} {p99} {tick_ms}");
        }
    }
}
