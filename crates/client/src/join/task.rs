//! A client on tokio is kept in its world by a task.

use crate::keep::{Asker, Following, Keeper};
use crate::shared::Shared;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

pub(super) struct Keeping {
    pub(super) shared: Arc<Shared>,
    pub(super) keeper: Keeper,
    pub(super) asker: Asker,
}

/// However the task ends, nobody waits for it any more.
struct Ended(Arc<Shared>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.has_place.send_replace(false);
    }
}

impl Keeping {
    /// Runs until the world is left and the place given back.
    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _ended = Ended(Arc::clone(&shared));
        let following = Following::beside(&self.asker).run(async |alert| {
            shared.with(|member, _| member.handle_alert(alert));
            shared.nudge.notify_one();
        });
        tokio::select! {
            () = self.keep() => {}
            never = following => match never {},
        }
    }

    async fn keep(&mut self) {
        let shared = Arc::clone(&self.shared);
        while !self.keeper.is_over() {
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
