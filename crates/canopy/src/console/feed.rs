//! The live stream of one page: a greeting, then ten frames a second.

use super::Console;
use super::rates::{Rates, RelayRates};
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
    rates: Rates,
    frames: Interval,
    greeted: bool,
}

#[derive(Serialize)]
struct Frame {
    t: f64,
    avatars: Vec<(u32, f64, f64)>,
    viewer: Option<ViewerFrame>,
    crowd: Option<CrowdFrame>,
    relay: Option<RelayRates>,
}

#[derive(Serialize)]
struct ViewerFrame {
    id: u32,
    x: f64,
    y: f64,
    level: u8,
    cells: Vec<[i32; 2]>,
    /// Walker, x, y, age in milliseconds.
    received: Vec<(u32, f32, f32, f64)>,
}

#[derive(Serialize)]
struct CrowdFrame {
    age_ms: AgeMs,
    missing: u64,
    duplicates: u64,
    unexpected: u64,
    updates_published: u64,
    deliveries: u64,
    deliveries_expected: u64,
}

#[derive(Serialize)]
struct AgeMs {
    p50: f64,
    p99: f64,
}

impl Feed {
    pub(super) fn new(console: Console, viewer: Option<u32>) -> Feed {
        let watch = console.crowd.as_ref().zip(viewer).map(|(view, viewer)| view.watch(viewer));
        let mut frames = interval(FRAME_EVERY);
        // A page that was asleep wants the present, not the past.
        frames.set_missed_tick_behavior(MissedTickBehavior::Skip);
        Feed { console, watch, rates: Rates::default(), frames, greeted: false }
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
        let snapshot = self.console.crowd.as_ref().map(|view| view.snapshot());
        Frame {
            t: self.console.started.elapsed().as_secs_f64(),
            viewer: self.viewer(),
            crowd: snapshot.as_ref().map(CrowdFrame::new),
            avatars: snapshot.map(|snapshot| snapshot.avatars).unwrap_or_default(),
            relay: self.console.relay.as_ref().map(|relay| self.rates.read(relay)),
        }
    }

    fn viewer(&self) -> Option<ViewerFrame> {
        let watch = self.watch.as_ref()?;
        let viewer = watch.viewer();
        let [x, y] = viewer.at?;
        let received = viewer
            .heard
            .iter()
            .map(|(walker, heard)| (*walker, heard.x, heard.y, heard.age.as_secs_f64() * 1000.0));
        let received = received.collect();
        Some(ViewerFrame { id: watch.walker(), x, y, level: 0, cells: viewer.cells, received })
    }
}

impl CrowdFrame {
    fn new(snapshot: &Snapshot) -> CrowdFrame {
        let Totals { verdict, age_p50_us, age_p99_us } = snapshot.totals;
        let ms = |us: u64| us as f64 / 1000.0;
        CrowdFrame {
            age_ms: AgeMs { p50: ms(age_p50_us), p99: ms(age_p99_us) },
            missing: verdict.missing,
            duplicates: verdict.duplicates,
            unexpected: verdict.unexpected,
            updates_published: verdict.published,
            // Like the expected ones, these count only updates that are old enough to be judged.
            deliveries: verdict.expected - verdict.missing,
            deliveries_expected: verdict.expected,
        }
    }
}
