"""Eight floats at a time for numba kernels: a vector kept in a register, and the operations that we need.

Numba cannot keep a small array in registers, which a convolution's inner loop needs to be fast. A value of type `vec`
is LLVM's <8 x float>: one AVX register, or two of SSE or NEON. No function checks bounds: buffers carry padding.

Numba's cache watches the file of a kernel, not what it imports: after a change here, touch kernels.py.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 8
FLOAT = ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)


class Vec(types.Type):
    """The numba type of eight float32."""

    def __init__(self) -> None:
        super().__init__(name="vec8f")


vec = Vec()


@register_model(Vec)
class VecModel(models.PrimitiveModel):
    """Stored as one LLVM vector."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any, target: Any) -> Any:
    """Where element `index` of a flat array lies, as a pointer to `target`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), target.as_pointer())


def _splat(builder: Any, scalar: Any) -> Any:
    """A scalar in all lanes."""
    one = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(VECTOR, ir.Undefined), lanes)


@intrinsic
def load(typing: Any, array: Any, index: Any) -> Any:
    """array[index : index + 8]."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _address(context, builder, signature.args[0], args[0], args[1], VECTOR)
        return builder.load(pointer, align=4)

    return vec(array, types.intp), build


@intrinsic
def store(typing: Any, array: Any, index: Any, value: Any) -> Any:
    """array[index : index + 8] = value."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _address(context, builder, signature.args[0], args[0], args[1], VECTOR)
        builder.store(args[2], pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vec), build


@intrinsic
def spread(typing: Any, array: Any, index: Any) -> Any:
    """array[index] in all eight lanes."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _address(context, builder, signature.args[0], args[0], args[1], FLOAT)
        return _splat(builder, builder.load(pointer, align=4))

    return vec(array, types.intp), build


@intrinsic
def splat(typing: Any, scalar: Any) -> Any:
    """A float32 in all eight lanes."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _splat(builder, args[0])

    return vec(types.float32), build


@intrinsic
def add(typing: Any, a: Any, b: Any) -> Any:
    """a + b lane by lane."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.fadd(*args)

    return vec(vec, vec), build


@intrinsic
def multiply_add(typing: Any, a: Any, b: Any, c: Any) -> Any:
    """a x b + c lane by lane, in one instruction where the machine has it."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(VECTOR, [VECTOR, VECTOR, VECTOR])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v8f32")
        return builder.call(function, args)

    return vec(vec, vec, vec), build


@intrinsic
def where_less(typing: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    """Lane by lane `yes` where a < b, else `no`; NaN is not less."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        left, right, yes_value, no_value = args
        return builder.select(builder.fcmp_ordered("<", left, right), yes_value, no_value)

    return vec(vec, vec, vec, vec), build
