//! A client on tokio is kept in its world by a task.

use super::areas::Following;
use crate::keep::{Asker, Keeper};
use crate::shared::Shared;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

pub(super) struct Keeping {
    pub(super) shared: Arc<Shared>,
    pub(super) keeper: Keeper,
    pub(super) asker: Asker,
}

impl Keeping {
    /// Runs until the world is left and the place given back.
    pub(super) async fn run(mut self) {
        let (ask, key) = (self.asker.ask.clone(), self.asker.key.clone());
        let following = Following { shared: self.shared.clone(), ask, key };
        tokio::select! {
            () = self.keep() => {}
            never = following.run() => match never {},
        }
    }

    async fn keep(&mut self) {
        let shared = Arc::clone(&self.shared);
        while !self.keeper.is_over() {
            if self.keeper.has_areas() {
                shared.standing.there_are_areas();
            }
            let keeper = &mut self.keeper;
            if let Some(question) = shared.with(|member, now| keeper.turn(now, member)) {
                let answer = self.asker.answer(question).await;
                shared.with(|member, now| keeper.handle_answer(now, member, answer));
                shared.nudge.notify_one();
                continue;
            }
            let due = shared.with(|member, now| keeper.due(now, member).map(|due| due.since(now)));
            tokio::select! {
                () = shared.lack.notified() => {}
                () = sleep(due.unwrap_or(Duration::MAX)) => {}
            }
        }
    }
}
