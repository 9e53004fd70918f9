//! Who asks the controller for a client without a runtime: a thread of its own, as names that are looked up and
//! connections that are made would hold up the game's frames. It sleeps but for a question now and then.

use super::following::Following;
use super::keeper::Keeper;
use super::question::{Answer, Asker, Question};
use crate::ask::{JoinError, Nearness, Patience, Place};
use crate::member::Member;
use crate::standing::Alert;
use canopy_net::Waker;
use canopy_wire::Time;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender, unbounded_channel};

/// The first answer: a place, and what was measured before.
pub(crate) type Entered = Result<(Place, Vec<Nearness>), JoinError>;

/// The client's side of such a thread, which ends with it.
pub(crate) struct Apart {
    /// At most one is under way, and the last one behind it.
    questions: UnboundedSender<Question>,
    answers: Receiver<Answer>,
    /// What is told of the world's areas. The next one is not heard before this one is taken.
    alerts: mpsc::Receiver<Alert>,
}

impl Apart {
    /// Starts one, which asks for a place at once, and again for so long while the controller cannot be reached. With each
    /// answer the waker is used.
    ///
    /// # Errors
    /// The system gives no thread, or no file.
    pub(crate) fn start(
        asker: Asker,
        span: Duration,
        waker: Arc<Waker>,
    ) -> io::Result<(Apart, Receiver<Entered>)> {
        let mut tokio = tokio::runtime::Builder::new_current_thread();
        let runtime = tokio.enable_io().enable_time().build()?;
        let (questions, mut asked) = unbounded_channel();
        let (enter, entered) = channel();
        let (tell, answers) = channel();
        let (alert, alerts) = mpsc::channel(1);
        let work = async move {
            let wake = Wake(waker);
            let (mut asker, mut patience) = (asker, Patience::new(span));
            // Nothing is asked but to leave while nobody has heard of a place.
            let looked = tokio::select! {
                biased;
                given_up = asked.recv() => {
                    // Whom a backend has let in has a place all the same.
                    if let Some(leave) = given_up {
                        asker.answer(leave).await;
                    }
                    return;
                }
                looked = asker.look(&mut patience) => looked,
            };
            let entered = match looked {
                Ok(looked) => asker.join(looked, &mut patience).await,
                Err(error) => Err(error),
            };
            let _ = enter.send(entered);
            wake.0.wake();
            let following = Following::beside(&asker).run(async |told| {
                let _ = alert.send(told).await;
                wake.0.wake();
            });
            tokio::select! {
                () = answer(asker, asked, tell, &wake.0) => {}
                never = following => match never {},
            }
        };
        let thread = std::thread::Builder::new().name("canopy-join".to_owned());
        thread.spawn(move || runtime.block_on(work))?;
        Ok((Apart { questions, answers, alerts }, entered))
    }

    /// Has the place given back that nobody has waited for.
    pub(crate) fn leave(&self) {
        let _ = self.questions.send(Question::Leave);
    }
}

/// Wakes the client also when the thread ends, however it does.
struct Wake(Arc<Waker>);

impl Drop for Wake {
    fn drop(&mut self) {
        self.0.wake();
    }
}

/// Answers until the client is gone. What it has asked for until then is still asked for: to take its place
/// back.
async fn answer(
    mut asker: Asker,
    mut asked: UnboundedReceiver<Question>,
    tell: Sender<Answer>,
    waker: &Waker,
) {
    while let Some(question) = asked.recv().await {
        let _ = tell.send(asker.answer(question).await);
        waker.wake();
    }
}

/// What keeps a client without a runtime in its world.
pub(crate) struct Kept {
    pub(crate) keeper: Keeper,
    pub(crate) apart: Apart,
}

impl Kept {
    /// Does what follows from what the controller has answered and told.
    pub(crate) fn hear(&mut self, now: Time, member: &mut Member) {
        while let Ok(answer) = self.apart.answers.try_recv() {
            self.keeper.handle_answer(now, member, answer);
        }
        while let Ok(alert) = self.apart.alerts.try_recv() {
            member.handle_alert(alert);
        }
    }

    /// Asks what is to be asked. Returns when there may be something else.
    pub(crate) fn ask(&mut self, now: Time, member: &mut Member) -> Option<Time> {
        if let Some(question) = self.keeper.turn(now, member) {
            // The thread lives as long as this.
            let _ = self.apart.questions.send(question);
        }
        self.keeper.due(now, member)
    }
}
