"""What is compared with what. The peers get the settings that are best for them."""

from pairs import Comparison, Figure

KEEPS_PAGES = (("LD_PRELOAD", "libtcmalloc_minimal.so.4"),)
# For a few large tensors; a training step gains nothing by it.
HUGE_PAGES = (*KEEPS_PAGES, ("THP_MEM_ALLOC_ENABLE", "1"))


def step(name, what, flags, bar=None, goal=None, peer_flags="--loop tuned", environment=KEEPS_PAGES):
    return Comparison(
        f"{{starling}} bench step {flags} --json",
        f"{{python}} {{peers}}/torch_step.py {flags} {peer_flags}",
        (Figure(name, what, "img/s", "images_per_s", "images_per_s", more_is_better=True, bar=bar, goal=goal),
         Figure(f"{name}.cpu", "the same, CPU time of a step", "ms", "cpu_ms", "cpu_ms")),
        ("torch", "torchvision"), environment)


# L1 keeps 64 of 4,096 values (1.6 %) and codes their places; the peer keeps 1 % as pairs of place and value. Ours parses both deltas, too.
def sparse(name, peer, flags, kept, bar, goal):
    return Comparison(
        "{starling} bench codec --level L1 --json",
        f"{{python}} {{peers}}/torch_codec.py {flags}",
        (Figure(name, f"sparse delta, L1, against {peer}: encode, CPU, one thread", "ms", "levels.L1.encode_cpu_ms", "encode.cpu_ms", bar=bar, goal=goal),
         Figure(f"{name}.exchange", "the same with an answer's arithmetic on x and r", "ms", "levels.L1.exchange_cpu_ms", "exchange.cpu_ms"),
         kept),
        environment=HUGE_PAGES)


# Gloo sums a vector once; ours is an offer and its answer, one after the other.
def averaging(name, level, where, bars, megabits=None):
    prefix = "ip netns exec {namespace} " if megabits else ""
    few = 5 if megabits == 1000 else 1  # a round of gloo's takes a second, or nine
    line = f" --namespaces {{namespaces}} --address {{address}} --interface {{interface}} --repeats {few}" if megabits else ""
    (bar, goal), bytes_bar = bars
    return Comparison(
        f"{prefix}{{starling}} bench round --level {level} --json",
        f"{{python}} {{peers}}/gloo_round.py{line}",
        (Figure(name, f"one exchange at {level} against gloo's all-reduce, {where}", "ms", "exchange_ms", "round_ms", bar=bar, goal=goal),
         Figure(f"{name}.cpu", "the same, CPU time of a node", "ms", "own_cpu_ms", "cpu_ms", bar=None if megabits else 1),
         Figure(f"{name}.bytes", "the same, bytes sent by a node", "B", "wire_bytes_sent", "bytes_sent", bar=bytes_bar)),
        megabits=megabits)


RESNET50 = "ResNet-50, 224 px, batch 16, bf16"
RESNET50_FLAGS = "--model resnet50 --img 224 --batch 16 --precision bf16 --steps 2 --repeats 2"
RESNET18 = "ResNet-18, 32 px, batch 64, fp32"
RESNET18_FLAGS = "--model resnet18 --img 32 --batch 64 --precision fp32 --steps 5 --repeats 3"

COMPARISONS = (
    sparse("C4", "top-k per 4,096", "--select block",
           Figure("C4.kept", "energy of what is kept, of the largest as many", "", "levels.L1.kept_energy", "kept_energy", more_is_better=True), 10, 20),
    sparse("C4.all", "top-k of all", "--select all",
           Figure("C4x", "energy of what is kept, against exact selection", "", "levels.L1.kept_energy", "kept_energy", True, 0.98, 0.995), 30, 60),
    Comparison(
        "{starling} bench optim --json",
        "{python} {peers}/torch_optim.py",
        (Figure("C3", "optimizer pass with bf16 working copy against fused SGD on one flat tensor: CPU, one thread", "ms",
                "bf16.cpu_ms", "step.cpu_ms", bar=1.0, goal=1.2),
         Figure("C3.fp32", "the same with fp32 gradients and working copy", "ms", "fp32.cpu_ms", "step.cpu_ms")),
        environment=HUGE_PAGES),
    step("C1", f"{RESNET50}, 2 threads, against tuned eager mode", f"{RESNET50_FLAGS} --threads 2", 1.3, 1.6),
    step("C1.one", f"{RESNET50}, one thread each", f"{RESNET50_FLAGS} --threads 1"),
    step("C2", f"{RESNET18}, 2 threads, against tuned eager mode", f"{RESNET18_FLAGS} --threads 2", 1.1, 1.4),
    step("C2.one", f"{RESNET18}, one thread each", f"{RESNET18_FLAGS} --threads 1"),
    # The bar of a processor without AMX.
    step("C1d", f"{RESNET50}, 2 threads, against what a tutorial writes (fp32)", f"{RESNET50_FLAGS} --threads 2", 2.3, 3,
         "--loop plain --precision fp32", ()),
    averaging("C7", "L2", "loopback", ((2, 4), 65)),
    averaging("C7.L3", "L3", "loopback", ((1.3, 2), 30)),
    averaging("C7.L1", "L1", "loopback", ((None, None), 190)),
    averaging("C7.1g", "L2", "1 Gbit/s", ((10, 15), None), 1000),
    averaging("C7.100m", "L2", "100 Mbit/s", ((20, 50), None), 100),
)
