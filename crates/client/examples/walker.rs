//! Walks through a grid, hears only those who are near, and prints who they are. Start a few.
//!
//! ```text
//! cargo run -p canopy-client --example walker -- 127.0.0.1:4040
//! ```
//!
//! Each cell of the grid is a group. A walker publishes its position to the cell that it is in and
//! is subscribed to that cell and its neighbours, so what it receives depends on how many are
//! near, not on how many there are.

use canopy_client::{Client, Group, Level};
use std::collections::BTreeSet;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

/// The world is a square of so many cells a side.
const SIDE: u32 = 8;
const STEP: Duration = Duration::from_millis(500);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(relay) = std::env::args().nth(1) else {
        eprintln!("usage: walker RELAY-HOST:PORT");
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
    let mut cell = (SIDE / 2, SIDE / 2);
    let mut near = BTreeSet::new();
    let mut step = tokio::time::interval(STEP);
    loop {
        tokio::select! {
            _ = step.tick() => {
                cell = walk(cell)?;
                look_around(&world, cell, &mut near);
                // While the relay is away there is no one to tell; the next step tries again.
                let _ = world.publish(group(cell), Level(0), &[cell.0 as u8, cell.1 as u8]);
            }
            update = world.recv() => match update {
                Some(update) => println!("{} is near, at {:?}", update.from, update.payload),
                None => return Ok(()),
            },
        }
    }
}

/// Subscribes to the cells that have come near, and lets go of those that are no longer.
fn look_around(world: &Client, (x, y): (u32, u32), near: &mut BTreeSet<Group>) {
    let rows = y.saturating_sub(1)..=(y + 1).min(SIDE - 1);
    let columns = x.saturating_sub(1)..=(x + 1).min(SIDE - 1);
    let now: BTreeSet<Group> =
        rows.flat_map(|y| columns.clone().map(move |x| group((x, y)))).collect();
    // Not awaited: they go on by themselves while we walk on.
    world.subscribe_many(now.difference(near).map(|group| (*group, Level(0))));
    world.unsubscribe_many(near.difference(&now).copied());
    *near = now;
}

fn group((x, y): (u32, u32)) -> Group {
    Group::new(y * SIDE + x)
}

/// One step in a random direction, staying in the world.
fn walk((x, y): (u32, u32)) -> Result<(u32, u32), getrandom::Error> {
    let towards = |at: u32, dice: u32| (at + dice % 3).saturating_sub(1).min(SIDE - 1);
    let dice = getrandom::u32()?;
    Ok((towards(x, dice), towards(y, dice >> 8)))
}
