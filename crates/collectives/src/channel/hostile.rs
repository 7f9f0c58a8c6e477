//! A faulty rank, from a group's first collective on: it sends arbitrary shared-memory offers,
//! addresses, handshakes and channel data.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::connect::STREAMS;
use crate::group::{GroupOptions, Operation, ProcessGroup, ReduceOp, Signature, TransportKind};
use crate::hostile::{GENEROUS, Script, leave_no_port};
use crate::net::{Hello, Purpose, introduce};
use crate::transport::hostile::{MAX_MESSAGE_BYTES, frames, mesh_key, mesh_of_two, read_frame};
use crate::transport::{Frame, FrameKind, Header, HostInfo, Payload};

/// The deadline of the collective that the other rank disturbs.
const LIMIT: Duration = Duration::from_millis(60);

/// A group of two whose other rank does what the bytes say.
///
/// # Panics
/// Where a collective does not come back soon after its deadline, or takes more than it may.
pub fn channel_peer(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let rank = script.below(2);
    let transport = TransportKind::ALL[script.below(TransportKind::ALL.len())];
    let elsewhere = script.chance();
    let (mesh, stream) = mesh_of_two(rank);
    let options = GroupOptions {
        timeout: Some(LIMIT),
        max_message_bytes: MAX_MESSAGE_BYTES,
        transport,
        ..GroupOptions::default()
    };
    let group = ProcessGroup::over(Arc::new(mesh), rank, options);
    let started = Instant::now();
    std::thread::scope(|scope| {
        let peer = scope.spawn(move || {
            let mut mad = Mad {
                stream,
                transport,
                elsewhere,
            };
            // Where the other side has closed the connection, the peer has no more to say.
            let _ = mad.run(&mut script);
        });
        let sum = group.all_reduce(vec![1.0_f32; 8], ReduceOp::Sum).wait();
        if let Ok(sum) = sum {
            assert_eq!(sum.len(), 8);
        }
        group.sever();
        peer.join().expect("the peer does not panic");
    });
    drop(group);
    assert!(started.elapsed() < GENEROUS);
}

struct Mad {
    stream: TcpStream,
    transport: TransportKind,
    elsewhere: bool,
}

impl Mad {
    fn run(&mut self, script: &mut Script<'_>) -> std::io::Result<()> {
        let bootstrap = match script.below(4) {
            0 => script.bytes().to_vec(),
            _ => self.endpoint(),
        };
        self.say(0, bootstrap)?;
        for round in 1..=3 {
            let said = match script.below(5) {
                0 => script.bytes().to_vec(),
                1 => self.offer(script),
                2 => br#"{"reason":null}"#.to_vec(),
                3 => br#"{"reason":"no"}"#.to_vec(),
                _ => self.address()?,
            };
            if script.below(8) > 0 {
                self.say(round, said)?;
            }
        }
        if script.chance() {
            self.stream.write_all(&frames(script))?;
        }
        while let Some((kind, phase, payload)) = read_frame(&mut self.stream) {
            if (kind, phase) == (0, 3)
                && let Ok(address) = serde_json::from_slice::<SocketAddr>(&payload)
            {
                dial(address, script)?;
            }
        }
        self.stream.shutdown(Shutdown::Both)
    }

    /// A frame of the group's first collective.
    fn say(&mut self, phase: u8, payload: Vec<u8>) -> std::io::Result<()> {
        let signature = Signature::new(Operation::AllReduce)
            .of::<f32>()
            .length(8)
            .op(ReduceOp::Sum);
        let header = Header {
            group: 1,
            step: 0,
            kind: FrameKind::Collective {
                sequence: 0,
                phase,
                signature,
            },
        };
        let frame = Frame::new(header, Payload::from_vec(payload));
        let header = crate::transport::hostile::header_of(&frame);
        self.stream.write_all(&header)?;
        self.stream.write_all(frame.payload.bytes())
    }

    fn endpoint(&self) -> Vec<u8> {
        let mut host_info = HostInfo::of_this_process();
        if self.elsewhere {
            host_info.host = "elsewhere".to_owned();
        }
        let host_info = serde_json::to_string(&host_info).expect("plain numbers and strings");
        let transport = self.transport;
        format!(r#"{{"transport":"{transport}","surroundings":{host_info},"cores":2}}"#)
            .into_bytes()
    }

    /// Memory of any process under any number.
    fn offer(&self, script: &mut Script<'_>) -> Vec<u8> {
        let process = if script.chance() {
            std::process::id()
        } else {
            script.number() as u32
        };
        let descriptor = script.number() as i32;
        let nonce = [script.byte(); 16];
        format!(
            r#"{{"process":{process},"descriptor":{descriptor},"nonce":{nonce:?},"refused":null}}"#
        )
        .into_bytes()
    }

    /// An address whose listener accepts nothing.
    fn address(&self) -> std::io::Result<Vec<u8>> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        Ok(serde_json::to_vec(&listener.local_addr()?)?)
    }
}

/// Dials a rank's listener, with or without the secret, and sends arbitrary bytes.
fn dial(address: SocketAddr, script: &mut Script<'_>) -> std::io::Result<()> {
    let key = mesh_key().derive(if script.below(4) == 0 {
        "others"
    } else {
        "channels"
    });
    let mut streams = Vec::new();
    for index in 0..STREAMS {
        let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
        leave_no_port(&stream)?;
        let hello = Hello {
            purpose: Purpose::Channel,
            rank: 1,
            world_size: 2,
            scope: 1,
            index: if script.below(8) == 0 {
                script.below(4)
            } else {
                index
            },
        };
        // A refusal leaves a connection on which anything may be said all the same.
        let _ = introduce(&mut stream, &key, &hello, 0, Instant::now() + LIMIT);
        streams.push(stream);
    }
    for stream in &mut streams {
        stream.write_all(script.bytes())?;
        stream.set_read_timeout(Some(Duration::from_millis(5)))?;
        // Whatever it says is of no interest.
        let _ = stream.read(&mut [0; 4096]);
    }
    Ok(())
}
