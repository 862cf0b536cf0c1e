"""A real SuperLink with SuperNodes in processes of their own, and many clients in a simulation."""

import datetime
import ipaddress
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

pytest.importorskip("flwr", reason="needs uedp[federated]")

from tests.distributed.test_federation import KEY, World, apart
from uedp.accounting import certificate as certificates
from uedp.corpus.store import Corpus
from uedp.distributed import runtime
from uedp.distributed.client import make_key
from uedp.distributed.federation import Federation
from uedp.distributed.flower import Server
from uedp.distributed.nodes import free_port, run_client, run_server
from uedp.distributed.registrations import load_registrations
from uedp.distributed.runtime import Tls
from uedp.distributed.simulation import Share
from uedp.errors import UserError
from uedp.training import loop
from uedp.training.datasets import Texts, TrainingData


@pytest.fixture
def world(tmp_path: Path, saved: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("uedp.accounting.statement.MISSED_CASES", ())
    return World(tmp_path, saved())


def certified(folder: Path) -> Tls:
    """A certificate for this machine, which signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    public, private = folder / "server.pem", folder / "server.key"
    public.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Tls(public, public, private)


@contextmanager
def started(*words: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process of its own, until the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "uedp", *words], stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def running(words: str) -> bool:
    """Whether a process of Flower with these words is left; parents are watched twice a second."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found = False
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            found = found or ("uedp.distributed.nodes" in line and words in line)
        if not found:
            return False
        time.sleep(0.5)
    return True


@pytest.mark.slow
def test_clients_in_processes_train_and_one_of_them_dies(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS; no code that the SuperLink sends is executed, by anybody."""
    folder, port = world.folder, free_port()
    tls, key, trap = certified(folder), folder / "key", folder / "executed"
    make_key(key)
    code = f"open({str(trap)!r}, 'w').close()\napp = None\n".encode()
    monkeypatch.setitem(runtime.BUNDLE, "uedp_federated.py", code)
    privacy = world.config.privacy.model_copy(update={"seed": None, "user_rate": 1.0})
    config = world.config.model_copy(update={"privacy": privacy})
    (folder / "config.yaml").write_text(config.to_yaml())
    said: list[str] = []
    server = Server(
        config, folder / "run", folder / "federation", clients=3, wait=120, patience=60,
        say=said.append,
    )  # fmt: skip
    with ExitStack() as stack:
        processes = []
        for name in ("client-0", "client-1", "client-2"):
            words = (
                *("federate", "client", str(folder / "config.yaml"), "--key", str(key)),
                *("--corpus", str(world.parts[name].folder), "--server", f"127.0.0.1:{port}"),
                *("--authority", str(tls.authority), "--set", "privacy.user_rate=1.0"),
            )
            log = folder / f"{name}.log"
            processes.append(stack.enter_context(started(*words, log=log)))

        def kill() -> None:
            while not (folder / "run" / "metrics.jsonl").is_file():
                time.sleep(0.1)
            processes[2].kill()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        outcomes: list[Any] = []
        run_server(lambda grid: outcomes.append(server.train(grid)), port=port, tls=tls)
        killer.join(5)
        told = [(folder / f"client-{n}.log").read_text() for n in range(3)]
    assert outcomes[0].finished
    assert "computed the updates of 8 users" in told[0]
    assert any("8 of 24 drawn users without an update" in line for line in said)
    found = certificates.verify(folder / "run", corpus=folder / "federation")
    assert found.setup.holders == "clients"
    assert not trap.exists()
    assert not running(str(port))


@pytest.mark.slow
def test_a_thousandth_of_a_corpus_is_a_client_too(world: World) -> None:
    """The simulation trains the model that one owner of the texts would."""
    folder = world.folder
    script = folder / "simulated.py"
    script.write_text(
        "from pathlib import Path\n"
        "from uedp.distributed.flower import Server\n"
        "from uedp.distributed.simulation import simulate\n"
        "from uedp.training.config import load_config\n"
        f"folder = Path({str(folder)!r})\n"
        "config = load_config(folder / 'config.yaml')\n"
        "server = Server(config, folder / 'run', folder / 'federation', clients=20, patience=60)\n"
        f"simulate(server, folder / 'whole', {KEY!r})\n"
    )
    (folder / "config.yaml").write_text(world.config.to_yaml())
    subprocess.run([sys.executable, script], check=True, timeout=280)
    shares = [
        Share(folder / "whole", KEY, world.config, number=number, count=20) for number in range(20)
    ]
    by_name = {one.registration.name: one for one in shares}
    joined = Federation.of(load_registrations(folder / "federation"))
    texts = Corpus(folder / "whole").sentences["text"].to_pylist()
    ordered = [texts[place] for name in joined.clients for place in by_name[name]._sentences]
    (folder / "central").mkdir()
    train = Texts(ordered, [None] * len(ordered))
    data = TrainingData(train, joined.incidence, folder / "central")
    loop.run(world.config, folder / "central" / "run", data=data)
    assert apart(world.weights(), world.weights("central/run")) < 1e-6


# --- what is refused -----------------------------------------------------------------------------


def test_another_machine_needs_tls() -> None:
    with pytest.raises(UserError, match=r"10\.0\.0\.1: another machine needs TLS"):
        run_client(None, "10.0.0.1:8000")
    with pytest.raises(UserError, match=r"0\.0\.0\.0: another machine needs TLS"):
        run_server(lambda grid: None, host="0.0.0.0")
    with pytest.raises(UserError, match="not an address"):
        run_client(None, "localhost")
    with pytest.raises(UserError, match="no such file"):
        Tls(Path("none.pem"))


def test_a_port_in_use_is_refused() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match="in use"):
            run_server(lambda grid: None, port=port)
