//! Witnesses behind https://, with Python's TLS before a witness: a certificate that holds, and several that do not.

#[path = "../common/mod.rs"]
mod common;
mod others;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use common::gpt_job;

/// Ends TLS, and passes bytes on to a port of this machine.
const PROXY: &str = r#"
import socket, ssl, sys, threading
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def pump(source, to):
    try:
        while data := source.recv(65536):
            to.sendall(data)
    except OSError:
        pass
def serve(connection):
    try:
        client = context.wrap_socket(connection, server_side=True)
    except OSError:
        return
    with client, socket.create_connection(("127.0.0.1", int(sys.argv[3]))) as witness:
        threading.Thread(target=pump, args=(client, witness), daemon=True).start()
        pump(witness, client)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// A process that ends with the test.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

struct World(tempfile::TempDir);

impl World {
    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn tiebreak(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tiebreak"));
        command.args(line.split(' ')).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn output(&self, line: &str) -> (i32, String) {
        let Output { status, stdout, stderr } = self.tiebreak(line).output().unwrap();
        let text = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        (status.code().unwrap(), text)
    }

    fn done(&self, line: &str) {
        let (code, text) = self.output(line);
        assert_eq!(code, 0, "{line}: {text}");
    }

    fn openssl(&self, line: &str) {
        let done = Command::new("openssl").args(line.split(' ')).current_dir(self.0.path()).output();
        let done = done.expect("openssl makes the certificates");
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// An authority, and a certificate of it for a subject; `days` from now.
    fn certificate(&self, authority: &str, name: &str, subject: &str, days: &str) {
        let curve = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
        if !self.at(&format!("{authority}.pem")).exists() {
            self.openssl(&format!(
                "req -x509 {curve} -keyout {authority}.key -out {authority}.pem -subj /CN={authority} -days 2"
            ));
        }
        self.openssl(&format!("req -new {curve} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
        fs::write(self.at("extensions"), format!("subjectAltName={subject}\nbasicConstraints=CA:FALSE\n"))
            .unwrap();
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -CAcreateserial -out {name}.pem -days {days} -extfile extensions"
        ));
    }

    /// A proxy with this certificate before a port; its own port.
    fn proxy(&self, name: &str, port: &str) -> (Kept, String) {
        let (certificate, key) = (self.at(&format!("{name}.pem")), self.at(&format!("{name}.key")));
        let args = ["-c".as_ref(), PROXY.as_ref(), certificate.as_os_str(), key.as_os_str(), port.as_ref()];
        let child = Command::new("python3").args(args).stdout(Stdio::piped()).spawn();
        let mut child = child.expect("python3 ends TLS");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        (Kept(child), line.trim().to_string())
    }
}

/// A witness that serves these logs, its port, and its key as it is published.
fn witness(world: &World, logs: &str) -> (Kept, String, String) {
    let line = format!("witness serve --key witness.key --state state {logs} --listen 127.0.0.1:0 --json -q");
    let mut child = world.tiebreak(&line).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut text = String::new();
    let report: Value = loop {
        text += &lines.next().expect("the witness ended").unwrap();
        if let Ok(report) = serde_json::from_str(&text) {
            break report;
        }
    };
    let text = |field: &str| report[field].as_str().unwrap().to_string();
    (Kept(child), text("address").rsplit(':').next().unwrap().to_string(), text("cosignature_key"))
}

#[test]
fn a_witness_behind_tls_is_asked_only_by_a_certificate_that_holds() {
    let world = World(tempfile::tempdir().unwrap());
    gpt_job(world.0.path(), "step", "");
    for name in ["trainer", "witness"] {
        world.done(&format!("key new {name}.key --name {name}.example"));
    }
    world.done("monitor nonce run.nonce");
    world.done("monitor promise add promises job.toml --key trainer.key --nonce run.nonce --round 7");
    fs::create_dir(world.at("state")).unwrap();
    let (_witness, port, _) = witness(&world, "--trainer-key trainer.key.pub");
    world.certificate("authority", "right", "IP:127.0.0.1,DNS:localhost", "1");
    world.certificate("authority", "elsewhere", "DNS:elsewhere.example", "1");
    world.certificate("authority", "expired", "IP:127.0.0.1", "-1");
    world.certificate("stranger", "foreign", "IP:127.0.0.1", "1");
    let before = fs::read(world.at("promises")).unwrap();
    let ask = |address: &str, more: &str| {
        world.output(&format!(
            "monitor declare promises --witness {address} --witness-key witness.key.pub{more}"
        ))
    };
    for (name, more, why) in [
        ("foreign", " --ca authority.pem", "certificate"),
        ("elsewhere", " --ca authority.pem", "certificate"),
        ("expired", " --ca authority.pem", "certificate"),
        // The authorities of the web do not know the test's.
        ("right", "", "certificate"),
        ("right", " --ca right.key", "something else"),
        ("right", " --ca promises", "has none in pem"),
    ] {
        let (_proxy, port) = world.proxy(name, &port);
        let (code, text) = ask(&format!("https://127.0.0.1:{port}"), more);
        assert!(code == 2 && text.to_lowercase().contains(why), "{name}{more}: {code} {text}");
        assert_eq!(fs::read(world.at("promises")).unwrap(), before);
    }
    // Without TLS on the other side there is no answer, and nothing is asked again in clear text.
    let (code, text) = ask(&format!("https://127.0.0.1:{port}"), " --ca authority.pem");
    assert_eq!(code, 2, "{text}");
    let (code, text) = ask(&format!("http://127.0.0.1:{port}"), " --ca authority.pem");
    assert!(code == 2 && text.contains("begins with https://"), "{text}");
    let (_proxy, port) = world.proxy("right", &port);
    let (code, text) = ask(&format!("https://127.0.0.1:{port}/"), " --ca authority.pem");
    assert!(code == 0 && text.contains("witness.example cosigned the head over 1 promises"), "{code} {text}");
    assert_ne!(fs::read(world.at("promises")).unwrap(), before);
    assert!(Path::new(&world.at("state")).read_dir().unwrap().count() > 1);
}
