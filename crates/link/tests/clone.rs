//! The clone engines on virtual devices in network namespaces.

use canopy_link::{
    Burst, Engine, EngineChoice, EngineName, Group, InstallRequest, Installation, Namespace,
    Receiver, SendEngine, Socket, SocketOptions, install,
};
use std::net::{IpAddr, SocketAddr};

#[test]
fn first() {
    let near = Namespace::new().unwrap();
    let far = Namespace::new().unwrap();
    Namespace::join(&near, &far).unwrap();
    far.run(|| std::process::Command::new("ethtool").args(["-K", "far", "gro", "on"]).status())
        .unwrap()
        .unwrap();
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("engine");
    let installation = near
        .run(|| install(&InstallRequest { device: "near", folder: &dir, owner: 0, xdp: true }))
        .unwrap();
    let installation = match installation {
        Ok(i) => i,
        Err(e) => panic!("{e}"),
    };
    for name in [EngineName::TcBpf, EngineName::Xdp] {
        for (a, b) in [("10.77.0.1", "10.77.0.2"), ("fd77::1", "fd77::2")] {
            let sockets: Vec<Socket> = far
                .run(|| {
                    (0..20)
                        .map(|_| {
                            Socket::bind(
                                SocketAddr::new(b.parse().unwrap(), 0),
                                &SocketOptions::default(),
                            )
                            .unwrap()
                        })
                        .collect()
                })
                .unwrap();
            let group: Group = sockets.iter().map(|s| s.local_address()).collect();
            near.run(|| {
                let socket =
                    Socket::bind(SocketAddr::new(a.parse().unwrap(), 0), &SocketOptions::default())
                        .unwrap();
                let mut engine = match Engine::open_in(&dir, EngineChoice::Named(name), &socket) {
                    Ok(e) => e,
                    Err(e) => {
                        println!("{e}");
                        return;
                    }
                };
                for i in 0..3 {
                    let r = engine.send_to_group(
                        &socket,
                        &group,
                        Burst::segments(&[7; 350], 100).unwrap(),
                    );
                    println!("{name} {a} {r:?}");
                    std::thread::sleep(std::time::Duration::from_millis(50));
                }
            })
            .unwrap();
            let mut counts = Vec::new();
            for s in &sockets {
                let mut n = 0;
                while Receiver::new(4, 65535)
                    .receive(s, |_, b| {
                        n += 1;
                    })
                    .unwrap()
                {}
                counts.push(n);
            }
            println!("{counts:?}");
        }
    }
    near.run(|| installation.remove()).unwrap().unwrap();
    println!("{:?}", std::fs::read_dir(folder.path()).unwrap().count());
}
