"""Header, command line and NCCL messages of a log: what they say about the run."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache

from simulator.importers.log_network import NetworkSeen
from simulator.importers.log_text import whole
from simulator.importers.measured import Device, RunParameters

__all__ = [
    "COLLECTIVES",
    "Facts",
    "command_ranks",
    "device_line",
    "environment_value",
    "nccl_version",
    "parameter_line",
    "plain_message",
    "test_name",
]

COLLECTIVES: dict[str, str] = {
    "all_reduce": "all_reduce",
    "allreduce": "all_reduce",
    "all_gather": "all_gather",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "alltoallv": "all_to_allv",
    "all_to_allv": "all_to_allv",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
    "send_recv": "send_recv",
    "gather": "gather",
    "scatter": "scatter",
    "hypercube": "hypercube",
    "barrier": "barrier",
}
"""Names of tests, in files and programs, to collsim's spelling."""

_PROGRAM = re.compile(r"(?:^|[^A-Za-z0-9])([a-z_]+?)_perf(?:_mpi)?\b")
_BANNER = re.compile(r"Collective test starting:\s*([a-z_]+?)(?:_perf|\s*$)")
_SCHEDULE = re.compile(r"# collsim measure: .*, schedule (\w+) × (\d+)")
_DEVICE = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+-?\d+\s+on\s+(\S+)\s+device\s+(\d+)"
    r"\s+\[([^\]]*)\]\s*(.*?)\s*$"
)
_PARAMETERS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("n_threads", re.compile(r"nThreads?\b\s*:?\s*(\d+)")),
    ("n_gpus", re.compile(r"nGpus\b\s*:?\s*(\d+)")),
    ("min_bytes", re.compile(r"minBytes\b\s*:?\s*(\d+)")),
    ("max_bytes", re.compile(r"maxBytes\b\s*:?\s*(\d+)")),
    ("warmup_iterations", re.compile(r"warmup ?[iI]ters\s*:?\s*(\d+)")),
    ("iterations", re.compile(r"(?<![pg] )\biters\s*:?\s*(\d+)")),
    ("aggregated", re.compile(r"agg ?[iI]ters\s*:?\s*(\d+)")),
    ("validation", re.compile(r"validation\s*:?\s*(\d+)")),
    ("graph", re.compile(r"graph\s*:?\s*(\d+)")),
)
_STEP = re.compile(r"step\s*:?\s*(\d+(?:\.\d+)?)\s*\((factor|bytes)\)")
_VERSION = re.compile(r"([NR]CCL) version\s*:?\s*v?(\d+\.\d+(?:\.\d+)?)")
_LIBRARY = re.compile(r"nccl-library=(\d+)")
_TESTS_VERSION = re.compile(r"\b([nr])ccl-tests:? [vV]ersion:?\s*v?(\S+)")
# A shell's word, or one inside a quoted command, a list after commas (srun --export=A=1,B=2), a
# pair of brackets, or prose.  The value ends where a shell ends a word; a semicolon belongs to
# `allreduce:ring;allgather:tree`.
_ASSIGNED = re.compile(
    r"(?:^|[\s\"'`({\[,;=&|])((?:NCCL|RCCL)_[A-Z0-9_]+)\s?=\s?"
    r"(\"[^\"]*\"|'[^']*'|(?:(?!,\w+=)[^\s\"'\\;&|()<>`{}\[\]]|;(?=\w+:))*)"
)
_EXPORTED = re.compile(r"(?:^|[\s;&|+])(?:export|declare -x)\s")
_UNSET = re.compile(r"(?:^|[\s;&|+])unset\s+(?:-v\s+)?((?:\w+[ \t]*)+)")
_SET_BY_ENV = re.compile(r"((?:NCCL|RCCL)_[A-Z0-9_]+) set by environment to (.*?)\.?\s*$")
_SET_BY_PLUGIN = re.compile(r"Setting ((?:NCCL|RCCL)_[A-Z0-9_]+) environment variable to (\S+)")
_SECRET = re.compile(r"TOKEN|SECRET|PASS|CRED|PRIVATE|AUTH|_KEY")
_ADDRESS = re.compile(
    r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])(?::\d+)?(?:/\d+)?"
    r"|(?<![\w:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{1,4}(?:%\w+)?(?![\w:])"
)
_VIA = re.compile(r"\bvia ((?:P2P|SHM|NET|COLLNET|direct)\b.*?)\s*$")
_NUMBER = re.compile(r"/\d+(?:\(\d+\))?(?=/|$)")
_NRANKS = re.compile(r"\bn[rR]anks (\d+)")
_NNODES = re.compile(r"\bnNodes (\d+)")
_USING = re.compile(r"NET/\w+ ?: Using ((?:\[\d+\]\S+ ?)+)")
_FOUND_NICS = re.compile(r"Selected [Pp]rovider is \S+.*\(found (\d+) nics\)")
_TELLING = re.compile(
    r"GPU ?Direct RDMA [Dd]isabled|Could not enable P2P|P2P is disabled|peer access|"
    r"NVLS multicast support is not available|NVLS.*(?:disabled|not supported)|"
    r"Using network Socket|No IB devices|[Ff]alling back|NET/Plugin.*internal network"
)
_SECRETIVE = re.compile(r"\b[0-9a-fA-F]{10,}\b|0x[0-9a-fA-F]+|(?<!\w)/[\w./-]+/")
_MOST_MESSAGES = 12


def test_name(text: str) -> tuple[str, str] | None:
    """Return (collective, what told) from a line that names a test program, else None.

    Examples
    --------
    >>> test_name("mpirun -np 16 ./build/all_reduce_perf -b 8"), test_name("no test")
    (('all_reduce', 'command line'), None)
    """
    match = _BANNER.search(text)
    if match is not None and match.group(1) in COLLECTIVES:
        return COLLECTIVES[match.group(1)], "banner"
    for match in _PROGRAM.finditer(text):
        if match.group(1) in COLLECTIVES:
            return COLLECTIVES[match.group(1)], "command line"
    return None


def device_line(text: str) -> Device | None:
    """Read a ``Rank … on HOST device …`` line of any version."""
    match = _DEVICE.search(text)
    if match is None:
        return None
    rank, group, host, device, bus_id, name = match.groups()
    return Device(
        rank=int(rank),
        group=int(group or 0),
        host=host,
        device=int(device),
        bus_id=bus_id,
        name=name,
    )


def parameter_line(text: str) -> RunParameters:
    """Read the ``nThread 1 nGpus 8 …`` line of any version; what is missing is None."""
    found: dict[str, int] = {}
    for name, pattern in _PARAMETERS:
        match = pattern.search(text)
        if match is not None:
            found[name] = int(match.group(1))
    step = _STEP.search(text)
    factor = float(step.group(1)) if step is not None and step.group(2) == "factor" else None
    step_bytes = int(float(step.group(1))) if step is not None and factor is None else None
    return RunParameters(
        n_threads=found.get("n_threads"),
        n_gpus=found.get("n_gpus"),
        min_bytes=found.get("min_bytes"),
        max_bytes=found.get("max_bytes"),
        step_factor=factor,
        step_bytes=step_bytes,
        warmup_iterations=found.get("warmup_iterations"),
        iterations=found.get("iterations"),
        aggregated=found.get("aggregated"),
        validation=found.get("validation"),
        graph=found.get("graph"),
    )


def nccl_version(code: int) -> str:
    """Return the version of NCCL's integer code.

    NCCL_VERSION is 1000 major + 100 minor + patch up to 2.8, 10000 major + 100 minor + patch
    from 2.9 (``nccl.h``).

    Examples
    --------
    >>> nccl_version(22105), nccl_version(2804)
    ('2.21.5', '2.8.4')
    """
    scale = 10000 if code >= 10000 else 1000
    return f"{code // scale}.{code % scale // 100}.{code % 100}"


def environment_value(name: str, value: str) -> str | None:
    """Return the value that may be kept: no secret (None), no address, no folder, no long text.

    Examples
    --------
    >>> environment_value("NCCL_COMM_ID", "10.1.2.3:5000"), environment_value("NCCL_TOKEN", "x")
    ('<address>', None)
    >>> environment_value("NCCL_TOPO_FILE", "/home/me/topo.xml")
    'topo.xml'
    """
    if _SECRET.search(name):
        return None
    value = _ADDRESS.sub("<address>", value.strip().strip("\"'"))
    if "/" in value and not value.startswith("=") and "," not in value and "<" not in value:
        value = value.rstrip("/").rpartition("/")[2]
    return value[:200]


def plain_message(text: str) -> str:
    """Return a message of the library without addresses, folders, keys and its tail.

    Examples
    --------
    >>> plain_message("Call to connect to 10.0.0.1<40161> failed : Connection refused")
    'Call to connect to <address><40161> failed : Connection refused'
    """
    return _SECRETIVE.sub("", _ADDRESS.sub("<address>", text)).strip()[:90]


def command_ranks(command: str) -> int | None:
    """Return processes × GPUs per process of an mpirun or srun command line, None if unsaid.

    Examples
    --------
    >>> command_ranks("mpirun -np 16 -N 8 all_reduce_perf -b 8 -e 8G -g 1")
    16
    >>> command_ranks("srun -N 2 --ntasks-per-node=8 all_reduce_perf")
    16
    """
    program = re.search(r"[a-z]+_perf(?:_mpi)?\b", command)
    head = command[: program.start()] if program is not None else command
    tail = command[program.end() :] if program is not None else ""
    processes: int | None = None
    if re.search(r"\b(?:mpirun|mpiexec|orterun|prun)\b", head):
        match = re.search(r"\s--?(?:np|n|c)[ =]+(\d+)", head)
        processes = int(match.group(1)) if match is not None else None
    elif re.search(r"\bsrun\b", head):
        total = re.search(r"\s(?:-n|--ntasks)[ =]*(\d+)", head)
        nodes = re.search(r"\s(?:-N|--nodes)[ =]*(\d+)", head)
        per_node = re.search(r"\s--ntasks-per-node[ =]*(\d+)", head)
        if total is not None:
            processes = int(total.group(1))
        elif nodes is not None and per_node is not None:
            processes = int(nodes.group(1)) * int(per_node.group(1))
    elif program is not None:
        processes = 1
    if processes is None or program is None:
        return None
    gpus = re.search(r"\s(?:-g|--ngpus)[ =]*(\d+)", tail)
    threads = re.search(r"\s(?:-t|--nthreads)[ =]*(\d+)", tail)
    return (
        processes
        * (int(gpus.group(1)) if gpus is not None else 1)
        * (int(threads.group(1)) if threads is not None else 1)
    )


@lru_cache(maxsize=4096)
def _transport(text: str) -> str:
    """Return the kind of a connection; device numbers differ per connection, the kind does not.

    Examples
    --------
    >>> _transport(" via NET/IB/3/GDRDMA")
    'NET/IB/GDRDMA'
    """
    match = _VIA.search(text)
    return "" if match is None else _NUMBER.sub("", match.group(1))[:80]


@dataclass(slots=True)
class Facts:
    """What lines outside the table say; collected while reading, reset by the next test."""

    collective: str = ""
    collective_from: str = ""
    version: str | None = None
    tests_version: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    environment_lines: dict[str, int] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    """Variables of the shell, which the tests that follow have too."""
    transports: Counter[str] = field(default_factory=Counter)
    messages: dict[str, None] = field(default_factory=dict)
    n_nics: int | None = None
    network: NetworkSeen = field(default_factory=NetworkSeen)
    library: str = ""
    info_ranks: int | None = None
    info_nodes: int | None = None
    command_ranks: int | None = None
    schedule: tuple[str, int] | None = None
    """Algorithm and channels that `collsim measure` ran by send and receive."""
    at: int = 0
    """Line that is being read."""

    def message(self, text: str) -> None:
        """Take what an NCCL INFO message says."""
        self.network.message(text)
        if (place := text.find(" via ")) >= 0 and (kind := _transport(text[place:])):
            if kind in self.transports or len(self.transports) < 100:
                self.transports[kind] += 1
        elif "environment" in text:
            match = _SET_BY_ENV.search(text) or _SET_BY_PLUGIN.search(text)
            if match is not None:
                self._variable(match.group(1), match.group(2))
        elif "anks " in text:
            if match := _NRANKS.search(text):
                self.info_ranks = max(int(match.group(1)), self.info_ranks or 0)
            if match := _NNODES.search(text):
                self.info_nodes = max(int(match.group(1)), self.info_nodes or 0)
        elif "Using" in text or "elected" in text or "isabled" in text or "not" in text:
            self._state(text)
        self._versions(text)

    def warning(self, text: str) -> None:
        """Take what an NCCL WARN message says."""
        if len(self.messages) < _MOST_MESSAGES:
            self.messages[f"NCCL WARN {plain_message(text)}"] = None

    def _state(self, text: str) -> None:
        match = _USING.search(text)
        count = len(match.group(1).split()) if match is not None else None
        if match is None and (found := _FOUND_NICS.search(text)) is not None:
            count = int(found.group(1))
        # Sockets list interfaces, verbs and plugins devices: of both the larger list counts.
        if count is not None and "NET/Socket" not in text:
            self.n_nics = max(count, self.n_nics or 0)
        if len(self.messages) < _MOST_MESSAGES and _TELLING.search(text):
            self.messages[plain_message(text)] = None

    def line(self, text: str) -> None:
        """Take what a line that is no row and no NCCL message says."""
        named = test_name(text) if "_perf" in text or "starting:" in text else None
        if named is not None and "concluded" not in text:
            if named[1] == "banner" or self.collective_from != "banner":
                self.collective, self.collective_from = named
            ranks = command_ranks(text) if named[1] == "command line" else None
            self.command_ranks = ranks if ranks is not None else self.command_ranks
        if "schedule" in text and (match := _SCHEDULE.search(text)) is not None:
            self.schedule = match.group(1), int(match.group(2))
        if "CCL_" in text:
            self._assignments(text)
        self._versions(text)

    def following(self, after: int) -> Facts:
        """Return what the next test of a log takes over.

        Parameters
        ----------
        after
            Line at which the last table ended: what was set below it is the next test's.
        """
        kept = {
            name: value
            for name, value in self.environment.items()
            if name in self.exported or self.environment_lines[name] > after
        }
        return Facts(
            version=self.version,
            library=self.library,
            tests_version=self.tests_version,
            environment=kept,
            environment_lines={name: self.environment_lines[name] for name in kept},
            exported=self.exported & kept.keys(),
        )

    def _assignments(self, text: str) -> None:
        for match in _UNSET.finditer(text):
            for name in match.group(1).split():
                self.environment.pop(name, None)
        exported = _EXPORTED.search(text) is not None
        for name, value in _ASSIGNED.findall(text):
            # Marks of a sentence or a list behind a word: `env: NCCL_IB_DISABLE=1: TCP`.
            self._variable(name, value if value[:1] in "\"'" else value.rstrip(",.:"))
            if exported:
                self.exported.add(name)

    def _versions(self, text: str) -> None:
        if "ersion" not in text:
            return
        if match := _VERSION.search(text):
            self.library, self.version = match.group(1).lower(), match.group(2)
        if match := _TESTS_VERSION.search(text):
            self.tests_version = match.group(2)
            self.library = self.library or f"{match.group(1)}ccl"
        if match := _LIBRARY.search(text):
            self.version = nccl_version(whole(match.group(1)) or 0)

    def _variable(self, name: str, value: str) -> None:
        kept = environment_value(name, value)
        if kept is not None:
            self.environment[name] = kept
            self.environment_lines[name] = self.at
