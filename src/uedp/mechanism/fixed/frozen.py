"""Frozen parts of Transformers' models, each in one kernel instead of ten small operations.

Norms by root mean square, rotations of queries and keys, and gated activations have no weights
that train, or frozen ones. Each is recognised by what it computes: on a trial it must agree with
the model's own.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from uedp.mechanism.fixed.adapters import forward_set

try:
    import triton
    import triton.language as tl
except ImportError:  # a CPU build
    triton = None

_ROTATION = "apply_rotary_pos_emb"  # its name in every family of Transformers that rotates
_WIDEST = 8192  # features of a token that one program holds
_CLOSE = 1e-3


def find_frozen(model: nn.Module) -> "Frozen":
    """The parts of a model that can be replaced; none without Triton, or on another device."""
    found = Frozen({}, {}, ())
    device = next(model.parameters()).device
    if triton is None or device.type != "cuda":
        return found
    norms, gates, namespaces = {}, [], {}
    with torch.no_grad():
        for module in model.modules():
            if type(module).__name__.endswith("RMSNorm"):
                scale = _norm_scale(module)
                if scale is not None:
                    norms[module] = scale
            elif _is_gated(module):
                gates.append(module)
            namespace = sys.modules[type(module).__module__].__dict__
            if _ROTATION in namespace and "Attention" in type(module).__name__:
                namespaces[namespace["__name__"]] = namespace
        rotations = {
            name: space for name, space in namespaces.items() if _rotates(space[_ROTATION], device)
        }
    return Frozen(norms, rotations, tuple(gates))


class Frozen:
    """Parts of a model that have a kernel each."""

    def __init__(
        self,
        norms: Mapping[nn.Module, tuple[Tensor, float]],
        rotations: Mapping[str, dict[str, Any]],
        gates: tuple[nn.Module, ...],
    ) -> None:
        self._norms, self._rotations, self._gates = norms, rotations, gates
        self._scales: dict[tuple[nn.Module, torch.dtype], Tensor] = {}

    @contextmanager
    def replaced(self, dtype: torch.dtype) -> Iterator[None]:
        """Inside, these parts compute by their kernels.

        What they read stays where it is for good: a recorded pass reads it again.
        """
        with ExitStack() as stack:
            for module, (scale, epsilon) in self._norms.items():
                own = self._scales.setdefault((module, dtype), scale.to(dtype))
                stack.enter_context(forward_set(module, _norm_of(own, epsilon)))
            for module in self._gates:
                stack.enter_context(forward_set(module, _gated_of(module)))
            for namespace in self._rotations.values():
                rotation = _rotation_or(namespace[_ROTATION])
                stack.enter_context(_entry_set(namespace, _ROTATION, rotation))
            yield


@contextmanager
def _entry_set(namespace: dict[str, Any], name: str, value: Any) -> Iterator[None]:
    before = namespace[name]
    namespace[name] = value
    try:
        yield
    finally:
        namespace[name] = before


# --- norms ---------------------------------------------------------------------------------------


def _norm_scale(module: nn.Module) -> tuple[Tensor, float] | None:
    """The factor of every feature and the constant under the root, if that is all there is."""
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, nn.Parameter) or weight.requires_grad or weight.dim() != 1:
        return None
    if not isinstance(epsilon, float) or len(weight) > _WIDEST:
        return None
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 3, len(weight), generator=generator).to(weight)

    def normalised(x: Tensor) -> Tensor:
        return nn.functional.rms_norm(x, x.shape[-1:], eps=epsilon)

    scale = (module(first) / normalised(first)).mean(0)
    agrees = torch.allclose(module(second), normalised(second) * scale, _CLOSE, _CLOSE)
    return (scale, epsilon) if agrees else None


def _norm_of(scale: Tensor, epsilon: float) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        result: Tensor = _Norm.apply(x, scale, epsilon)  # type: ignore[no-untyped-call]
        return result

    return forward


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, epsilon: float) -> Tensor:
        flat = x.contiguous().view(-1, x.shape[-1])
        output = torch.empty_like(flat)
        block = triton.next_power_of_2(flat.shape[1])
        _norm[(len(flat),)](flat, scale, output, flat.shape[1], epsilon, block=block)
        ctx.save_for_backward(flat, scale)
        ctx.epsilon, ctx.block = epsilon, block
        return output.view(x.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        x, scale = ctx.saved_tensors
        grad = grads[0].contiguous()
        result = torch.empty_like(x)
        _norm_backward[(len(x),)](x, scale, grad, result, x.shape[1], ctx.epsilon, block=ctx.block)
        return result.view(grad.shape), None, None


# --- rotations -----------------------------------------------------------------------------------


def _rotates(function: Callable[..., Any], device: torch.device) -> bool:
    """Whether it is the usual rotation, by halves."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 3, 5, 16, generator=generator).to(device)
    k = torch.randn(1, 1, 5, 16, generator=generator).to(device)
    cos, sin = torch.randn(2, 1, 5, 16, generator=generator).to(device)
    try:
        expected, actual = function(q, k, cos, sin), rotate(q, k, cos, sin)
        pairs = zip(expected, actual, strict=True)
        return all(torch.allclose(*pair, _CLOSE, _CLOSE) for pair in pairs)
    except (TypeError, ValueError, RuntimeError):
        return False


def _rotation_or(usual: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel for what it can compute: another thread may run another model meanwhile."""

    def rotation(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **options: Any) -> Any:
        if args or options or not q.is_cuda or q.shape[0] != 1 or cos.shape != (1, *q.shape[2:]):
            return usual(q, k, cos, sin, *args, **options)
        return rotate(q, k, cos, sin)

    return rotation


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """As Transformers calls it: queries and keys are (1, heads, tokens, features)."""
    cos, sin = cos[0].contiguous(), sin[0].contiguous()
    turned, keys = (
        _Rotation.apply(x, cos, sin)  # type: ignore[no-untyped-call]
        for x in (q, k)
    )
    return turned, keys


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotated(x, cos, sin, False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotated(grads[0], cos, sin, True), None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, back: bool) -> Tensor:
    _, heads, tokens, width = x.shape
    x = x if x.stride(3) == 1 else x.contiguous()
    output = torch.empty(1, tokens, heads, width, dtype=x.dtype, device=x.device).transpose(1, 2)
    _rotate[(tokens,)](
        x, cos, sin, output, x.stride(2), x.stride(1), heads, width // 2, back=back,
        head_block=triton.next_power_of_2(heads), half_block=triton.next_power_of_2(width // 2),
    )  # fmt: skip
    return output


# --- gates ---------------------------------------------------------------------------------------


def _is_gated(module: Any) -> bool:
    """Whether it computes `down(silu(gate(x)) * up(x))`."""
    names = ("gate_proj", "up_proj", "down_proj", "act_fn")
    if not all(hasattr(module, name) for name in names):
        return False
    if type(module.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        return False
    weight = next(module.gate_proj.parameters())
    width = getattr(module.gate_proj, "in_features", 0)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, width, generator=generator).to(weight)
    inner = nn.functional.silu(module.gate_proj(x)) * module.up_proj(x)
    return torch.allclose(module(x), module.down_proj(inner), _CLOSE, _CLOSE)


def _gated_of(module: Any) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        inner = _Gate.apply(module.gate_proj(x), module.up_proj(x))  # type: ignore[no-untyped-call]
        result: Tensor = module.down_proj(inner)
        return result

    return forward


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        output = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
        rows, width = gate.numel() // gate.shape[-1], gate.shape[-1]
        _gate[(rows, triton.cdiv(width, _BLOCK))](
            gate, up, output, gate.stride(-2), up.stride(-2), width, block=_BLOCK
        )
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        grad, width = grads[0].contiguous(), gate.shape[-1]
        # side by side, as the layer that made both wants them
        both = torch.empty(*gate.shape[:-1], 2 * width, dtype=gate.dtype, device=gate.device)
        rows = gate.numel() // width
        _gate_backward[(rows, triton.cdiv(width, _BLOCK))](
            gate, up, grad, both, gate.stride(-2), up.stride(-2), width, block=_BLOCK
        )
        return both[..., :width], both[..., width:]


_BLOCK = 1024


if triton is not None:

    @triton.jit
    def _read(x, scale, column, inside, width, epsilon):  # type: ignore[no-untyped-def]
        """A token's features, the inverse of their root mean square, and their factors."""
        values = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
        inverse = tl.rsqrt(tl.sum(values * values) / width + epsilon)
        return values, inverse, tl.load(scale + column, mask=inside, other=0.0).to(tl.float32)

    @triton.jit  # type: ignore[untyped-decorator]
    def _norm(x, scale, output, width, epsilon, block: tl.constexpr):  # type: ignore[no-untyped-def]
        row = tl.program_id(0).to(tl.int64) * width
        column = tl.arange(0, block)
        inside = column < width
        values, inverse, factors = _read(x + row, scale, column, inside, width, epsilon)
        tl.store(output + row + column, values * inverse * factors, mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _norm_backward(  # type: ignore[no-untyped-def]
        x, scale, grad, result, width, epsilon, block: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64) * width
        column = tl.arange(0, block)
        inside = column < width
        values, inverse, factors = _read(x + row, scale, column, inside, width, epsilon)
        came = tl.load(grad + row + column, mask=inside, other=0.0).to(tl.float32) * factors
        along = tl.sum(came * values) * inverse * inverse / width
        tl.store(result + row + column, inverse * (came - values * along), mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _rotate(  # type: ignore[no-untyped-def]
        x, cos, sin, output, token_stride, head_stride, heads, half, back: tl.constexpr,
        head_block: tl.constexpr, half_block: tl.constexpr,
    ):  # fmt: skip
        token = tl.program_id(0).to(tl.int64)
        head = tl.arange(0, head_block)[:, None]
        feature = tl.arange(0, half_block)[None, :]
        inside = (head < heads) & (feature < half)
        angle = token * 2 * half + feature
        known = feature < half
        cos_1 = tl.load(cos + angle, mask=known, other=0.0).to(tl.float32)
        cos_2 = tl.load(cos + angle + half, mask=known, other=0.0).to(tl.float32)
        sin_1 = tl.load(sin + angle, mask=known, other=0.0).to(tl.float32)
        sin_2 = tl.load(sin + angle + half, mask=known, other=0.0).to(tl.float32)
        place = x + token * token_stride + head * head_stride + feature
        first = tl.load(place, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(place + half, mask=inside, other=0.0).to(tl.float32)
        if back:
            new_first = first * cos_1 + second * sin_2
            new_second = second * cos_2 - first * sin_1
        else:
            new_first = first * cos_1 - second * sin_1
            new_second = second * cos_2 + first * sin_2
        place = output + (token * heads + head) * 2 * half + feature
        tl.store(place, new_first, mask=inside)
        tl.store(place + half, new_second, mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _gate(  # type: ignore[no-untyped-def]
        gate, up, output, gate_stride, up_stride, width, block: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < width
        gates = tl.load(gate + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
        ups = tl.load(up + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(output + row * width + column, gates * tl.sigmoid(gates) * ups, mask=inside)

    @triton.jit  # type: ignore[untyped-decorator]
    def _gate_backward(  # type: ignore[no-untyped-def]
        gate, up, grad, both, gate_stride, up_stride, width, block: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * block + tl.arange(0, block)
        inside = column < width
        gates = tl.load(gate + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
        ups = tl.load(up + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
        came = tl.load(grad + row * width + column, mask=inside, other=0.0).to(tl.float32)
        sigmoid = tl.sigmoid(gates)
        slope = sigmoid * (1 + gates * (1 - sigmoid))
        place = both + row * 2 * width + column
        tl.store(place, came * ups * slope, mask=inside)
        tl.store(place + width, came * gates * sigmoid, mask=inside)
