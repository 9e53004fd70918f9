//! Walks through a square world and hears everybody in it: those who are near more often, where the relay
//! cannot send everything. Start a few.
//!
//! ```text
//! cargo run -p canopy-client --example horizon -- 127.0.0.1:4040
//! ```
//!
//! Each cell of the world is a group. A walker publishes its position to the cell that it is in, and is
//! subscribed to all of them, each with a weight by its distance. It gives positions; `Surroundings` says
//! which subscriptions matter noticeably more or less than before.

use canopy_client::{Client, Falloff, Group, Level, Surroundings};
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

/// The world is a square of so many cells a side, and a cell one of so many metres.
const SIDE: u32 = 16;
const CELL: f32 = 25.0;
/// What a walker covers, in square metres.
const WALKER: f32 = 1.0;
const STEP: Duration = Duration::from_millis(100);
/// How far a walker gets in a step, in metres.
const STRIDE: f32 = 0.5;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(relay) = std::env::args().nth(1) else {
        eprintln!("usage: horizon RELAY-HOST:PORT");
        return ExitCode::from(2);
    };
    match wander(&relay).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn wander(relay: &str) -> Result<(), Box<dyn Error>> {
    let world = Client::builder(relay).connect().await?;
    let mut position = [f32::from(getrandom::u32()? as u8), f32::from(getrandom::u32()? as u8)];
    let mut surroundings = Surroundings::new(Falloff::METRES);
    let mut step = tokio::time::interval(STEP);
    loop {
        tokio::select! {
            _ = step.tick() => {
                position = walk(position)?;
                look_around(&mut surroundings, position);
                // Most of the time there are none.
                let changed = surroundings.seen_from([position[0], position[1], 0.0]);
                world.subscribe_weighted(changed);
                // While the relay is away there is no one to tell; the next step tries again.
                let bytes: Vec<u8> = position.iter().flat_map(|axis| axis.to_be_bytes()).collect();
                let _ = world.publish(cell_at(position), Level(0), &bytes);
            }
            update = world.recv() => match update {
                Some(update) => println!("{} is at {:?}", update.from, update.payload),
                None => return Ok(()),
            },
        }
    }
}

/// Says of each cell where it is nearest.
fn look_around(surroundings: &mut Surroundings, position: [f32; 2]) {
    for (x, y) in (0..SIDE).flat_map(|y| (0..SIDE).map(move |x| (x, y))) {
        let nearest = |at: f32, cell: u32| at.clamp(cell as f32 * CELL, (cell + 1) as f32 * CELL);
        let place = [nearest(position[0], x), nearest(position[1], y), 0.0];
        surroundings.put(Group::new(y * SIDE + x), Level(0), place, WALKER);
    }
}

fn cell_at([x, y]: [f32; 2]) -> Group {
    let cell = |at: f32| ((at / CELL) as u32).min(SIDE - 1);
    Group::new(cell(y) * SIDE + cell(x))
}

/// One step in a random direction, staying in the world.
fn walk(position: [f32; 2]) -> Result<[f32; 2], getrandom::Error> {
    let angle = getrandom::u32()? as f32 / u32::MAX as f32 * std::f32::consts::TAU;
    let within = |at: f32| at.clamp(0.0, SIDE as f32 * CELL);
    Ok([within(position[0] + STRIDE * angle.cos()), within(position[1] + STRIDE * angle.sin())])
}
