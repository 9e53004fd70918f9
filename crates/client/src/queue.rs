//! A queue of fixed length between the client's task and the application. When it is full the
//! oldest item makes room: for a world, what is new matters more.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

pub(crate) struct Queue<T> {
    content: Mutex<Content<T>>,
    /// Tells all who wait that the content has changed.
    changed: Notify,
}

pub(crate) struct Content<T> {
    items: VecDeque<T>,
    limit: usize,
    dropped: u64,
    closed: bool,
}

impl<T> Content<T> {
    pub(crate) fn push(&mut self, item: T) {
        if self.items.len() >= self.limit {
            self.items.pop_front();
            self.dropped += 1;
        }
        self.items.push_back(item);
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}

impl<T> Queue<T> {
    pub(crate) fn new(limit: usize) -> Queue<T> {
        let items = VecDeque::new();
        let content = Content { items, limit: limit.max(1), dropped: 0, closed: false };
        Queue { content: Mutex::new(content), changed: Notify::new() }
    }

    /// The content, to push to or to look at. Call [`Queue::wake`] after pushing.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Content<T>> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_waiters();
    }

    /// Nothing is pushed any more.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.wake();
    }

    pub(crate) fn try_recv(&self) -> Option<T> {
        self.lock().items.pop_front()
    }

    /// The next item; `None` once the queue is closed and empty. An item is taken only when it is
    /// returned, so nothing is lost with a future that is dropped.
    pub(crate) async fn recv(&self) -> Option<T> {
        loop {
            // Made before looking, so that what is pushed in between wakes it.
            let changed = self.changed.notified();
            {
                let mut content = self.lock();
                if let Some(item) = content.items.pop_front() {
                    return Some(item);
                }
                if content.closed {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// Waits until the queue is closed.
    pub(crate) async fn closed(&self) {
        loop {
            let changed = self.changed.notified();
            if self.lock().closed {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_oldest_make_room_and_are_counted() {
        let queue = Queue::new(2);
        for number in 0..5 {
            queue.lock().push(number);
        }
        queue.close();
        assert_eq!((queue.recv().await, queue.recv().await), (Some(3), Some(4)));
        assert_eq!((queue.recv().await, queue.lock().dropped()), (None, 3));
    }

    #[tokio::test]
    async fn a_dropped_wait_takes_nothing() {
        let queue = Queue::new(2);
        tokio::select! {
            biased;
            _ = queue.recv() => panic!("the queue is empty"),
            () = async { queue.lock().push(1); queue.wake() } => {}
        }
        assert_eq!(queue.recv().await, Some(1));
    }

    #[tokio::test]
    async fn all_who_wait_are_served() {
        let queue = Queue::new(8);
        let push_two = async {
            tokio::task::yield_now().await;
            queue.lock().push(1);
            queue.lock().push(2);
            queue.wake();
        };
        let (first, second, ()) = tokio::join!(queue.recv(), queue.recv(), push_two);
        assert_eq!(first.into_iter().chain(second).sum::<i32>(), 3);
    }
}
