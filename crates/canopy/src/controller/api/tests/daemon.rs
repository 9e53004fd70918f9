//! A controller with its API, for tests: a store in memory, and relays that do as they are told.

use super::*;

pub(super) const SECRET: &str = "a secret of sixteen or more";
pub(super) const SOON: Duration = Duration::from_secs(20);

/// A controller with its API, and relays a, b, … without links.
pub(super) struct Daemon {
    pub(super) api: SocketAddr,
    pub(super) router: Router,
    pub(super) handle: Handle,
    pub(super) joins: Joins,
    pub(super) issuer: SigningKey,
    silent: Arc<Mutex<BTreeSet<RelayId>>>,
}

pub(super) fn key(number: u8) -> SigningKey {
    SigningKey::from_seed([number; 32])
}

impl Daemon {
    pub(super) async fn start(relays: u8) -> Daemon {
        Daemon::admitting(relays, Admits::Everybody).await
    }

    pub(super) async fn admitting(relays: u8, admits: Admits) -> Daemon {
        let mut storage = MemoryStorage::default();
        let (settings, retry) = (Settings::default(), Retry::default());
        let now = crate::controller::driver::now();
        let mut controller = Controller::start(settings, retry, now, &mut storage).unwrap();
        let gigabit = Rate { bits: 1e9, packets: 1e6 };
        let ids: Vec<RelayId> = (0..relays)
            .map(|number| {
                let new = NewRelay {
                    name: Name::new(&char::from(b'a' + number).to_string()).unwrap(),
                    key: [number; 32],
                    native: ([127, 0, 0, 1], 4040 + u16::from(number)).into(),
                    uplink: Limits { send: gigabit, receive: gigabit },
                    places: 100,
                    comtrees: 1024,
                };
                controller.register(now, new).unwrap()
            })
            .collect();
        let (outgoing, incoming) = unbounded_channel();
        let handle = Handle::start(controller, storage, move |relay, message| {
            _ = outgoing.send((relay, message));
        });
        let silent = Arc::new(Mutex::new(BTreeSet::new()));
        tokio::spawn(obey(ids, handle.clone(), incoming, silent.clone()));
        let joins = Joins::start(handle.clone(), key(9), admits);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let api = listener.local_addr().unwrap();
        let router = Api::new(handle.clone(), joins.clone()).router(ApiSecret::new(SECRET));
        tokio::spawn(super::super::server::serve(listener, router.clone()));
        let daemon = Daemon { api, router, handle, joins, issuer: key(9), silent };
        daemon
            .until("/v1/relays", |all| {
                let up =
                    all["relays"].as_array().unwrap().iter().filter(|relay| relay["state"] == "up");
                up.count() == usize::from(relays)
            })
            .await;
        daemon
    }

    /// A relay says nothing from now on: `a`, `b`, …
    pub(super) fn silence(&self, relay: &str) {
        let number = relay.as_bytes()[0] - b'a' + 1;
        self.silent.lock().unwrap().insert(RelayId(u16::from(number)));
    }

    pub(super) async fn send(&self, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.api))
            .header("authorization", format!("Bearer {SECRET}"));
        self.request(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub(super) async fn request(&self, request: Request<Body>) -> (StatusCode, Value) {
        let response = timeout(SOON, client().request(request)).await.unwrap().unwrap();
        let status = response.status();
        let bytes: Bytes = to_bytes(Body::new(response.into_body()), 1 << 20).await.unwrap();
        let value = serde_json::from_slice(&bytes);
        (
            status,
            value.unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&bytes).into_owned())),
        )
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        let (status, value) = self.send("GET", path, "").await;
        assert_eq!(status, StatusCode::OK, "{path}: {value}");
        value
    }

    /// Asks until the answer is as wished for; each question waits for the controller's answer.
    pub(super) async fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = tokio::time::Instant::now();
        loop {
            let value = self.get(path).await;
            if is_so(&value) {
                return value;
            }
            assert!(begun.elapsed() < SOON, "{path} stays {value}");
            tokio::task::yield_now().await;
        }
    }

    /// What happens from now on.
    pub(super) async fn events(&self) -> Events {
        let request = Request::builder()
            .uri(format!("http://{}/v1/events", self.api))
            .header("authorization", format!("Bearer {SECRET}"));
        let response = client().request(request.body(Body::empty()).unwrap()).await.unwrap();
        let parts = Body::new(response.into_body()).into_data_stream();
        Events { parts, text: String::new() }
    }

    pub(super) async fn world(&self, name: &str, comtrees: u8) {
        let body = json!({ "name": name, "comtrees": comtrees,
            "channels": [{ "name": "chat", "first": 0, "groups": 16 }] });
        let (status, world) = self.send("POST", "/v1/worlds", &body.to_string()).await;
        assert_eq!(status, StatusCode::CREATED, "{world}");
    }
}

/// The stream of what happens.
pub(super) struct Events {
    parts: axum::body::BodyDataStream,
    text: String,
}

impl Events {
    pub(super) async fn next(&mut self) -> Value {
        use futures_util::StreamExt;
        loop {
            if let Some((line, rest)) = self.text.split_once('\n') {
                let event = line.strip_prefix("data:").map(serde_json::from_str);
                self.text = rest.to_owned();
                if let Some(event) = event {
                    return event.unwrap();
                }
                continue;
            }
            let part = timeout(SOON, self.parts.next()).await.expect("an event").unwrap().unwrap();
            self.text.push_str(std::str::from_utf8(&part).unwrap());
        }
    }
}

/// Relays that do as they are told, and say that they are there.
async fn obey(
    ids: Vec<RelayId>,
    handle: Handle,
    mut incoming: UnboundedReceiver<(RelayId, Vec<u8>)>,
    silent: Arc<Mutex<BTreeSet<RelayId>>>,
) {
    let mut relays: BTreeMap<RelayId, RelaySide> =
        ids.into_iter().map(|id| (id, RelaySide::new(1))).collect();
    let mut beats = tokio::time::interval(Duration::from_millis(200));
    loop {
        tokio::select! {
            message = incoming.recv() => {
                let Some((id, message)) = message else { return };
                let relay = relays.get_mut(&id).unwrap();
                relay.handle_message(&message);
                while let Some(applying) = relay.poll_apply() {
                    if let Some(Item::Link { id, .. }) = &applying.after {
                        let report = LinkReport { link: *id, up: true, delay_us: 100 };
                        relay.set_link(crate::controller::driver::now(), report);
                    }
                    relay.applied(applying, Ok(()));
                }
            }
            _ = beats.tick() => {
                let now = crate::controller::driver::now();
                relays.values_mut().for_each(|relay| relay.handle_timeout(now));
            }
        }
        for (id, relay) in &mut relays {
            while let Some(answer) = relay.poll_transmit() {
                if silent.lock().unwrap().contains(id) {
                    continue;
                }
                let id = *id;
                let told = handle.ask(move |controller: &mut Controller, now: Time| {
                    controller.handle_message(now, id, &answer);
                });
                if told.await.is_err() {
                    return;
                }
            }
        }
    }
}

pub(super) fn client_key(number: u8) -> String {
    use base64::Engine;
    base64::engine::general_purpose::URL_SAFE_NO_PAD.encode([number; 32])
}

pub(super) fn new_member(number: u8) -> String {
    json!({ "subject": format!("player-{number}"), "client_key": client_key(number) }).to_string()
}
