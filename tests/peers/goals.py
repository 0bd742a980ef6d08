"""What is compared with what. The peers get the settings that are best for them."""

import dataclasses

from pairs import Comparison, Figure

KEEPS_PAGES = (("LD_PRELOAD", "libtcmalloc_minimal.so.4"),)
# For a few large tensors; a training step gains nothing by it.
HUGE_PAGES = (*KEEPS_PAGES, ("THP_MEM_ALLOC_ENABLE", "1"))


# Flags that come last hold: peer_flags and our_flags may say again what `flags` says.
def step(name, what, flags, bar=None, goal=None, peer_flags="--loop tuned", environment=KEEPS_PAGES, our_flags=""):
    return Comparison(
        f"{{starling}} bench step {flags} {our_flags} --json",
        f"{{python}} {{peers}}/torch_step.py {flags} {peer_flags}",
        (Figure(name, what, "img/s", "images_per_s", "images_per_s", more_is_better=True, bar=bar, goal=goal),
         Figure(f"{name}.cpu", "the same, CPU time of a step", "ms", "cpu_ms", "cpu_ms")),
        ("torch", "torchvision"), environment)


def beside_a_busy_one(comparison):
    """The same with a third thread on the machine's two cores, for ours and for the peer."""
    busy = "{python} {peers}/beside_busy.py "
    return dataclasses.replace(comparison, ours=busy + comparison.ours, peer=busy + comparison.peer)


def on_a_gpu(comparison, more=()):
    return dataclasses.replace(comparison, figures=(*comparison.figures, *more), environment=(), gpu=True)


def gpu_step(name, batch, loop, bar, goal, more=()):
    """As many steps as `bench step` takes on a GPU."""
    against = "eager mode" if loop == "tuned" else "torch.compile(max-autotune)"
    return on_a_gpu(step(name, f"ResNet-50, 224 px, batch {batch}, bf16, on a GPU, against {against}",
                         f"--device cuda --model resnet50 --img 224 --batch {batch} --precision bf16", bar, goal,
                         f"--loop {loop} --warm-up 30 --steps 20 --repeats 5"), more)


# L1 keeps 64 of 4,096 values (1.6 %) and codes their places; the peer keeps 1 % as pairs of place and value. Ours parses the other's delta, too.
def sparse(name, peer, flags, kept, bar, goal):
    return Comparison(
        "{starling} bench codec --level L1 --json",
        f"{{python}} {{peers}}/torch_codec.py {flags}",
        (Figure(name, f"sparse delta, L1, against {peer}: encode, CPU, one thread", "ms", "levels.L1.encode_cpu_ms", "encode.cpu_ms", bar=bar, goal=goal),
         Figure(f"{name}.exchange", "the same with an answer's arithmetic on x and r", "ms", "levels.L1.exchange_cpu_ms", "exchange.cpu_ms"),
         kept),
        environment=HUGE_PAGES)


# The peer's scales are as many as ours, in fp32. `exchange` has the update of the reference in it; ours parses the other's delta, too.
def dense(name, level, what, flags, bar, goal):
    return Comparison(
        f"{{starling}} bench codec --level {level} --json",
        f"{{python}} {{peers}}/torch_dense.py {flags}",
        (Figure(name, f"{what}, {level}: one exchange's arithmetic, CPU, one thread", "ms",
                f"levels.{level}.exchange_cpu_ms", "exchange.cpu_ms", bar=bar, goal=goal),
         Figure(f"{name}.encode", "the same, encode", "ms", f"levels.{level}.encode_cpu_ms", "encode.cpu_ms")),
        environment=HUGE_PAGES)


BOTH_ENDS = " --namespaces {namespaces} --address {address} --interface {interface}"


# Gloo sums a vector once; ours is an offer and its answer, one after the other.
def averaging(name, level, where, bars, megabits=None):
    prefix = "ip netns exec {namespace} " if megabits else ""
    few = 5 if megabits == 1000 else 1  # a round of gloo's takes a second, or nine
    line = f"{BOTH_ENDS} --repeats {few}" if megabits else ""
    (bar, goal), bytes_bar = bars
    return Comparison(
        f"{prefix}{{starling}} bench round --level {level} --repeats 50 --json",
        f"{{python}} {{peers}}/gloo_round.py{line}",
        (Figure(name, f"one exchange at {level} against gloo's all-reduce, {where}", "ms", "exchange_ms", "round_ms", bar=bar, goal=goal),
         Figure(f"{name}.cpu", "the same, CPU time of a node", "ms", "own_cpu_ms", "cpu_ms", bar=None if megabits else 1),
         Figure(f"{name}.bytes", "the same, bytes sent by a node", "B", "wire_bytes_sent", "bytes_sent", bar=bytes_bar)),
        environment=HUGE_PAGES, megabits=megabits)


def dense_exchange(name, what, cipher):
    """A whole model in fp32 each way, not averaged: what the program does not do in training. Over plain sockets it is C15's yardstick that runs and no
    code of a node: what a session may cost beside it."""
    return Comparison(
        f"{{starling}} bench wire --cipher {cipher} --json", "{python} {peers}/gloo_round.py",
        (Figure(name, f"102 MB each way at once {what}, not averaged, against gloo's all-reduce of as many, loopback", "ms", "exchange_ms", "round_ms"),),
        environment=HUGE_PAGES)


# What `starling bench swarm` and torch_ddp.py both print.
def swarms(name, what, ours, peer, figures, needs=(), megabits=None):
    """Two commands that print the figures of whole swarms. `figures` are (suffix, what, unit, field, more is better, bar, goal), with a limit after
    them if there is one."""
    def environment_of(command):
        return KEEPS_PAGES if "torch_ddp.py" in command else ()

    # Who says it starts its processes at both ends of the line itself. Nodes of ours share the loopback of one end.
    def on_the_line(command):
        return command if megabits is None or "{namespaces}" in command else "ip netns exec {namespace} " + command

    return Comparison(
        on_the_line(ours), on_the_line(peer),
        tuple(Figure(name + suffix, f"{what}: {kind}" if not suffix else kind, unit, field, field, more, bar, goal, *limit)
              for suffix, kind, unit, field, more, bar, goal, *limit in figures),
        needs, environment_of(peer), environment_of(ours), megabits)


def against_ddp(name, what, flags, bars, ours_flags="", peer_flags=""):
    bar, goal = bars
    return swarms(name, what, f"{{starling}} bench swarm {flags} {ours_flags} --json", f"{{python}} {{peers}}/torch_ddp.py {flags} {peer_flags}",
                  (("", "images a second of all", "img/s", "images_per_s", True, bar, goal),
                   (".bytes", "the same, bytes a node sends in a step", "B", "bytes_per_step", False, 60, None)), TORCH)


def with_and_without(name, what, flags, bars, our_flags="", field=("images a second of all", "img/s", "images_per_s", True), megabits=None):
    """Gossip on against gossip off, and beside it DDP against its processes alone. On a line DDP can send both ways at once; ours has that rate for both
    together, to its own loss."""
    bar, goal = bars
    ours = f"{{starling}} bench swarm {flags}{our_flags} --json"
    ddp = f"{{python}} {{peers}}/torch_ddp.py {flags}{BOTH_ENDS if megabits else ''}"
    kind, unit, name_of, more = field
    return (swarms(name, what, ours, ours + " --gossip off", (("", kind, unit, name_of, more, bar, goal),), megabits=megabits),
            swarms(f"{name}.ddp", f"DDP over gloo: {what}", ddp, ddp + " --alone", (("", kind, unit, name_of, more, None, None),), TORCH, megabits))


def with_gossip(name, what, flags, bars, tau=16):
    """Three nodes, each other's neighbours, with gossip and without."""
    bar, goal = bars
    ours = f"{{starling}} bench swarm --nodes 3 {flags}"
    return swarms(name, f"{what}: gossip each {tau} steps, against none", f"{ours} --set gossip.tau={tau} --json",
                  f"{ours} --gossip off --json", (("", "images a second of all", "img/s", "images_per_s", True, bar, goal),))


def slowed(name, what, command, needs, bars):
    bar, goal = bars
    # Of the same nodes on both sides: the slowest of one node more is slower whatever happens to that one.
    return swarms(name, what, f"{command} --fault slow", command, (("", "a step of the slowest other one", "ms", "others_step_ms", False, bar, goal),), needs)


def photographs(name, what, ours, *more):
    """Batches of a training pass over 500 photographs of 500 x 375 pixels."""
    flags = "--img 224 --batch 64"
    return Comparison(
        f"{{starling}} bench data --data {ours} {flags} --set data.threads=2 --json",
        f"{{python}} {{peers}}/torch_data.py --data {{folder}}/photographs {flags} --threads 2",
        (Figure(name, f"photographs as JPEG, 224 px: {what}", "img/s", "images_per_s", "images_per_s", more_is_better=True),),
        (*TORCH, "PIL"), KEEPS_PAGES, prepare=("{python} {peers}/photographs.py {folder}/photographs", *more))


TORCH = ("torch", "torchvision")
LEARNS_S = 1200  # four nodes on two cores, to the end of a budget; DDP takes a quarter of an hour of it
NODES18 = "--model resnet18 --img 32 --batch 32 --precision fp32 --threads 1 --steps 50 --repeats 1"
NODES_MEMORY = "--nodes 3 --model resnet50 --img 32 --batch 4 --precision bf16 --threads 1 --steps 8 --repeats 1"
# Of a ResNet-50 node with two neighbours: a vector for each and one more, and 96 MB.
REFERENCES_MIB = (3 * 102 + 96) * 1e6 / 2**20
# Steps until the period between two offers has settled.
SETTLED = " --warm-up 25"
RESNET50_NODES = "--model resnet50 --img 224 --batch 8 --precision bf16 --threads 1 --repeats 1"
NODES50 = f"{RESNET50_NODES} --steps 16"
PINNED = f"--nodes 2 --pin {NODES18}"
PINNED4 = f"--nodes 4 --pin {NODES18}"
# A batch as in G1: the bar was set for steps of some 32 ms.
GPU_NODES = "--device cuda --model resnet50 --img 224 --batch 256 --precision bf16 --steps 20 --repeats 1 --data synthetic:classes=10,size=224"

RESNET50 = "ResNet-50, 224 px, batch 16, bf16"
RESNET50_FLAGS = "--model resnet50 --img 224 --batch 16 --precision bf16 --steps 2 --repeats 2"
RESNET18 = "ResNet-18, 32 px, batch 64"
RESNET18_FLAGS = "--model resnet18 --img 32 --batch 64 --steps 5 --repeats 3"
FP32 = "--precision fp32"

COMPARISONS = (
    sparse("C4", "top-k per 4,096", "--select block",
           Figure("C4.kept", "energy of what is kept, of the largest as many", "", "levels.L1.kept_energy", "kept_energy", more_is_better=True), 10, 20),
    sparse("C4.all", "top-k of all", "--select all",
           Figure("C4x", "energy of what is kept, against exact selection", "", "levels.L1.kept_energy", "kept_energy", True, 0.98, 0.995), 30, 60),
    dense("C5.int8", "L6", "8 bits a value, a scale for 256, against compiled operators", "--codec int8 --compile", 1, 1.25),
    dense("C5.sign", "L3", "1 bit a value, a scale for 4,096, against operators", "--codec sign", 8, 12),
    Comparison(
        "{starling} bench optim --json",
        "{python} {peers}/torch_optim.py",
        (Figure("C3", "optimizer pass with bf16 working copy against fused SGD on one flat tensor: CPU, one thread", "ms",
                "bf16.cpu_ms", "step.cpu_ms", bar=1.0, goal=1.2),
         Figure("C3.fp32", "the same with fp32 gradients and working copy", "ms", "fp32.cpu_ms", "step.cpu_ms")),
        environment=HUGE_PAGES),
    step("C1", f"{RESNET50}, 2 threads, against tuned eager mode", f"{RESNET50_FLAGS} --threads 2", 1.3, 1.6),
    step("C1.one", f"{RESNET50}, one thread each", f"{RESNET50_FLAGS} --threads 1"),
    beside_a_busy_one(step("C1.busy", f"{RESNET50}, 2 threads, beside a process that keeps a core busy", f"{RESNET50_FLAGS} --threads 2")),
    # PyTorch is faster in fp32 at this size, ours in bf16, which is what `auto` finds.
    step("C2", f"{RESNET18}, 2 threads, bf16, against tuned eager mode in fp32", f"{RESNET18_FLAGS} --threads 2", 1.1, 1.4,
         f"--loop tuned {FP32}", our_flags="--precision bf16"),
    step("C2.fp32", f"{RESNET18}, 2 threads, both in fp32", f"{RESNET18_FLAGS} --threads 2 {FP32}"),
    step("C2.one", f"{RESNET18}, one thread each, both in fp32", f"{RESNET18_FLAGS} --threads 1 {FP32}"),
    # The bar of a processor without AMX.
    step("C1d", f"{RESNET50}, 2 threads, against what a tutorial writes (fp32)", f"{RESNET50_FLAGS} --threads 2", 2.3, 3,
         "--loop plain --precision fp32", ()),
    dense_exchange("C6", "over plain sockets (the yardstick of C15, in one process)", "none"),
    dense_exchange("C6e", "over a session", "chacha20poly1305"),
    averaging("C7", "L2", "loopback", ((2, 4), 65)),
    averaging("C7.L3", "L3", "loopback", ((1.3, 2), 30)),
    averaging("C7.L1", "L1", "loopback", ((None, None), 190)),
    averaging("C7.1g", "L2", "1 Gbit/s", ((10, 15), None), 1000),
    averaging("C7.100m", "L2", "100 Mbit/s", ((20, 50), None), 100),
    Comparison(
        "{starling} bench wire --json",
        "{starling} bench wire --cipher none --json",
        (Figure("C15", "a session against a plain Asio loop that keeps what comes, and the cipher by itself, both ways over loopback: CPU time of a gigabyte", "s",
                "cpu_s_per_gb", "and_cipher_cpu_s_per_gb", bar=0.9, goal=0.95),
         Figure("C20", "256 bytes there and back over an idle session, against plain Asio", "us",
                "idle_round_trip_us.p50", "idle_round_trip_us.p50", bar=1 / 2, goal=1 / 1.4)), ()),
    Comparison(
        "{starling} bench round --level L2 --json",
        "{python} {peers}/hivemind_round.py --peers 2 --compression fp16",
        (Figure("C8", "one exchange at L2 against a round of hivemind's averager, fp16, loopback", "ms", "exchange_ms", "round_ms", bar=15, goal=40),
         Figure("C8.cpu", "the same, CPU time of a node", "ms", "own_cpu_ms", "cpu_ms")),
        (*TORCH, "hivemind"), KEEPS_PAGES),
    against_ddp("C9", "two nodes, one thread each, ResNet-18, 32 px, batch 32, fp32, against DDP over gloo", f"--nodes 2 {NODES18}", (1.15, 1.4)),
    against_ddp("C9.50", "two nodes, one thread each, ResNet-50, 224 px, batch 8, bf16, against DDP over gloo", f"--nodes 2 {NODES50}", (1.15, 1.4),
                "--data synthetic:classes=10,size=224"),
    Comparison(
        "{python} {peers}/starling_fashion.py {starling}", "{python} {peers}/torch_fashion.py",
        (Figure("C13", "4 nodes on Fashion-MNIST, batch 16 each, against DDP over gloo: steps of a node until the validation loss is 0.25, of its neighbourhood mean "
                "(what a final consensus would make, as far as it knows)", "",
                "steps_to_mark", "steps_to_mark", bar=1 / 1.05),
         Figure("C13.bytes", "the same, bytes a node sends in a step", "B", "bytes_per_step", "bytes_per_step", bar=60),
         Figure("C13.total", "the same, bytes a node sends until then", "B", "bytes_to_mark", "bytes_to_mark"),
         Figure("C13.end", "the same, accuracy at the end, %", "", "accuracy", "accuracy", more_is_better=True)), TORCH, pair_s=LEARNS_S),
    Comparison(
        "{python} {peers}/starling_fashion.py {starling} --set eval.of=replica", "{python} {peers}/torch_fashion.py",
        (Figure("C13.replica", "4 nodes on Fashion-MNIST, batch 16 each, against DDP over gloo: steps of a node until the validation loss of its own replica is 0.25", "",
                "steps_to_mark", "steps_to_mark"),), TORCH, pair_s=LEARNS_S),
    with_gossip("C10", "two neighbours each, ResNet-50, 224 px, batch 8, bf16", f"{RESNET50_NODES} --steps 16 --data synthetic:classes=10,size=224", (0.97, 0.99)),
    # As little arithmetic for as many parameters as there is: what gossip costs at the worst.
    with_gossip("C10.18", "two neighbours each, ResNet-18, 32 px, batch 32, fp32", NODES18, (None, None)),
    *with_and_without("C11.2", "2 nodes on these cores, against as many alone", f"--nodes 2 {NODES18}", (0.95, 0.98), SETTLED),
    *with_and_without("C11.4", "4 nodes on these cores, against as many alone", f"--nodes 4 {NODES18}", (0.95, 0.98), SETTLED),
    *with_and_without("C11.8", "8 nodes on these cores, against as many alone", f"--nodes 8 {NODES18}", (0.95, 0.98), SETTLED),
    slowed("C12", "one of two nodes, a core each, runs a quarter of the time", f"{{starling}} bench swarm {PINNED} --json", (), (0.95, 0.99)),
    slowed("C12.ddp", "DDP over gloo: one of two nodes, a core each, runs a quarter of the time", f"{{python}} {{peers}}/torch_ddp.py {PINNED}",
           TORCH, (None, None)),
    slowed("C12.4", "one of four nodes, two on a core, runs a quarter of the time", f"{{starling}} bench swarm {PINNED4} --json", (), (0.95, 0.99)),
    slowed("C12.4.ddp", "DDP over gloo: one of four nodes, two on a core, runs a quarter of the time", f"{{python}} {{peers}}/torch_ddp.py {PINNED4}",
           TORCH, (None, None)),
    *with_and_without("C14", "2 nodes on a line of 100 Mbit/s (ours: both ways together), against as many alone", f"--nodes 2 {NODES18}", (0.95, 0.98), SETTLED, megabits=100),
    swarms("C16", "two neighbours each, bf16, against training alone", f"{{starling}} bench swarm {NODES_MEMORY} --json",
           f"{{starling}} bench swarm {NODES_MEMORY} --gossip off --json",
           (("", "memory of a ResNet-50 node", "MiB", "rss_mib", False, None, None, REFERENCES_MIB, True),)),
    Comparison(
        "{starling} bench swarm --nodes 8 --model resnet50 --img 32 --batch 8 --precision bf16 --threads 1 --steps 2 --repeats 1 --finish --json",
        "{python} {peers}/gloo_round.py --processes 8 --repeats 5",
        (Figure("C19", "final consensus of 8 ResNet-50 nodes, bit-identical, against one all-reduce of gloo's among 8 processes", "ms",
                "consensus_ms", "round_ms", bar=1 / 6, goal=1 / 4),), TORCH, HUGE_PAGES),
    # With no word of a precision: which one is faster is measured before the first step, in a start as a user sees it.
    Comparison(
        "{starling} bench swarm --nodes 1 --model resnet18 --batch 32 --threads 1 --steps 1 --repeats 1 --json",
        "{python} {peers}/torch_import.py",
        (Figure("C21", "from the start to the first training step, against `import torch` alone", "ms", "first_step_ms", "import_ms", bar=1.0),
         Figure("C21.listen", "from the start to listening", "ms", "listening_ms", "import_ms", limit=300)),
        TORCH),
    *(swarms(f"C24.{fault}", f"one of two nodes is {done}, against DDP over gloo",
             f"{{starling}} bench swarm --nodes 2 {NODES18} --fault {fault} --json", f"{{python}} {{peers}}/torch_ddp.py --nodes 2 {NODES18} --fault {fault}",
             (("", "the longest time in 10 s that the other one's training thread does not run", "ms", "longest_pause_ms", False, None, None, "step_ms"),), TORCH)
      for fault, done in (("stop", "stopped for 10 s"), ("kill", "killed"))),
    photographs("data", "decoded, cropped, mirrored and normalised by two threads, against torchvision and a DataLoader of two workers",
                "{folder}/photographs"),
    photographs("data.packed", "the same, packed once (`starling data pack`), against the peer's without", "packed:{folder}/packed",
                "{starling} data pack --data {folder}/photographs --out {folder}/packed --json"),
    gpu_step("G1", 256, "tuned", 1.25, 1.8,
             (Figure("G1a", "the same, ours alone", "img/s", "images_per_s", "images_per_s", more_is_better=True, limit=4500),
              Figure("G14", "the same, most memory that was held", "B", "gpu.peak_bytes", "peak_bytes", bar=1 / 1.05, goal=1 / 0.9),)),
    gpu_step("G1.compiled", 256, "compiled", 1.0, 1.25),
    gpu_step("G3.16", 16, "tuned", 1.5, 2.5),
    gpu_step("G3.32", 32, "tuned", 1.4, 2),
    gpu_step("G3.64", 64, "tuned", 1.3, 1.5),
    Comparison(
        "{starling} bench optim --device cuda --json", "{python} {peers}/torch_optim.py --device cuda --times 50",
        (Figure("G6", "optimizer pass with bf16 working copy on a GPU, against fused SGD on one flat tensor", "ms", "bf16.step_ms", "step.ms", bar=1, limit=0.15),),
        gpu=True),
    Comparison(
        "{starling} bench codec --device cuda --level L1 --json", "{python} {peers}/torch_codec.py --select block --device cuda --repeats 20",
        (Figure("G7", "sparse delta, L1, on a GPU, against top-k per 4,096: kernels of an encode", "ms", "levels.L1.encode_ms", "encode.ms", bar=8, goal=20, limit=0.15),
         # Ours begins with both deltas in host memory and ends with the norm there; the limit is that of two deltas which lie on the device.
         Figure("G9", "two sparse deltas added to x and r, ours with their upload", "ms", "levels.L1.apply_ms", "apply.ms", limit=2 * 0.025)),
        gpu=True),
    on_a_gpu(with_gossip("G11", "three nodes on a GPU", GPU_NODES, (0.98, 0.992), 1)),
    on_a_gpu(with_gossip("G11.16", "three nodes on a GPU", GPU_NODES, (0.995, 0.999))),
)
