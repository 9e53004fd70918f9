//! What participants ask over their channels: to join, to stay, to move, to leave, and what to measure.

use super::joins::{JoinAsk, Joins, LeaveAsk};
use canopy_api::{Budget, Joined, Nearness, Problem, RelaysToMeasure};
use canopy_channel::{Hello, Join, Reply};
use canopy_session::PublicKey;
use serde::Serialize;

/// What a participant is told whose question is answered.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    /// Its place.
    Place(Box<Joined>),
    Relays(RelaysToMeasure),
    Nothing {},
}

/// The answer to a participant whose channel has this key; nothing if it is a relay that asks.
pub(super) async fn answer(
    joins: &Joins,
    caller: &PublicKey,
    hello: Hello,
) -> Option<Reply<Answer>> {
    let answered = match hello {
        Hello::Join(join) => joins.join(ask(join, caller)).await.map(place),
        Hello::Renew(join) => joins.renew(ask(join, caller)).await.map(place),
        Hello::Move(join) => joins.relocate(ask(join, caller)).await.map(place),
        Hello::Leave { world, credential, address, visit } => {
            let ask = LeaveAsk { world, credential, address, visit };
            joins.leave(caller, ask).await.map(|()| Answer::Nothing {})
        }
        Hello::Relays => joins.relays().await.map(Answer::Relays),
        Hello::Register(_) | Hello::Follow { .. } => return None,
    };
    Some(match answered {
        Ok(answer) => Reply::Done(answer),
        Err(problem) => refused(&problem),
    })
}

/// How a refusal is answered: as the API's, what is wrong, where, and the remedy.
pub(super) fn refused(problem: &Problem) -> Reply<Answer> {
    Reply::Refused(serde_json::to_value(&problem.error).unwrap_or_default())
}

fn place(joined: Joined) -> Answer {
    Answer::Place(Box::new(joined))
}

fn ask(join: Join, caller: &PublicKey) -> JoinAsk {
    let Join { world, credential, budget, measured, visit } = join;
    let budget = budget.map(|budget| Budget {
        up_bits: budget.up_bits,
        up_packets: budget.up_packets,
        down_bits: budget.down_bits,
        down_packets: budget.down_packets,
    });
    let near =
        |near: canopy_channel::Nearness| Nearness { relay: near.relay, delay_us: near.delay_us };
    let measured = measured.into_iter().map(near).collect();
    let visit = visit.unwrap_or(0);
    JoinAsk { world, credential, client_key: *caller, budget, measured, visit }
}
