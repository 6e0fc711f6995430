"""The compiler: turns a kernel into an object file.

Numba types a function and lowers it to LLVM IR. All other steps are gcodec's own: a helper is
compiled once for each process and linked into all kernels that call it, only whole kernels are
optimized and become machine code, and an entry of gcodec's own takes the place of Numba's
wrappers.
"""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import codegen, compiler
from numba.core import types as numba_types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import LoweringPass, PassManager, register_pass
from numba.core.cpu import CPUContext
from numba.core.funcdesc import FunctionDescriptor, PythonFunctionDescriptor
from numba.core.imputils import builtin_registry
from numba.core.ir_utils import build_definitions
from numba.core.registry import cpu_target
from numba.core.runtime.nrt import rtsys
from numba.core.ssa import reconstruct_ssa
from numba.core.typed_passes import (
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.typing import templates
from numba.core.typing.context import Context
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)
from numba.extending import typeof_impl
from numba.np import linalg

from gcodec.runtime import loader
from gcodec.runtime import processor as processors
from gcodec.runtime.jit import grouped, types_of
from gcodec.runtime.processor import Processor

if TYPE_CHECKING:
    from gcodec.runtime.jit import Kernel


types: Any = numba_types  # whose classes its annotations hide


def loop_code(kernel: Kernel, processor: Processor, checked: bool) -> tuple[str, bytes]:
    """Compile a kernel.

    Parameters
    ----------
    kernel : Kernel
        What to compile.
    processor : Processor
        What to compile for.
    checked : bool
        Whether the loop checks its indices.

    Returns
    -------
    results : str
        Types of the results, separated by spaces.
    code : bytes
        Object file. It defines the loop twice: for the entry, and for loops that call it.
    """
    # The compiler makes many objects, and reference counts free nearly all of them.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with global_compiler_lock:
            return _loop_code(kernel, _target(processor, checked))
    finally:
        if collecting:
            gc.enable()


def _loop_code(kernel: Kernel, target: _Target) -> tuple[str, bytes]:
    kinds = parameter_types(kernel.signature)
    compiled = target.compiled(kernel.bound(), kinds, symbol=kernel.symbol)
    module = target.context.create_module(kernel.name)
    _emit_slots(module, target.context, compiled.description)
    compiled.library.add_ir_module(module)
    returned = compiled.description.restype
    results = map(
        types.unliteral, returned if isinstance(returned, types.BaseTuple) else [returned]
    )
    exported = loader.LOOP_SYMBOL, kernel.symbol
    return " ".join(map(str, results)), compiled.library.object_code(exported, kernel.vectorized)


def parameter_types(signature: str) -> tuple[Any, ...]:
    """Return the Numba types of the parameters of a kernel; see `gcodec.runtime.jit.kernel`."""
    kinds = grouped(signature, map(_numba_type, types_of(signature)))
    return tuple(types.Tuple(kind) if isinstance(kind, tuple) else kind for kind in kinds)


def _numba_type(word: str) -> Any:
    direction, _, name = word.rpartition(" ")
    if not direction:
        return getattr(types, name)
    element = getattr(types, name.removesuffix("[]"))
    return types.Array(element, 1, "C", readonly=direction == "in")


def _emit_slots(module: Any, context: Any, description: Any) -> None:
    """Emit a C function of slots that calls a loop."""
    word = ir.IntType(64)
    kind = ir.FunctionType(ir.IntType(32), [word.as_pointer()])
    function = ir.Function(module, kind, loader.LOOP_SYMBOL)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    places = (builder.gep(function.args[0], [word(k)]) for k in range(loader.SLOTS))

    def argument(kind: Any) -> Any:
        if isinstance(kind, types.BaseTuple):
            return context.make_tuple(builder, kind, [argument(each) for each in kind])
        value = builder.load(next(places))
        if isinstance(kind, types.Array):
            return _array(context, builder, kind, value, builder.load(next(places)))
        return _from_slot(builder, value, context.get_value_type(kind))

    values = [argument(each) for each in description.argtypes]
    returned, convention = description.restype, context.call_conv
    inner = convention.get_function_type(returned, description.argtypes)
    loop = ir.Function(module, inner, description.llvm_func_name)
    status, result = convention.call_function(
        builder, loop, returned, description.argtypes, values
    )
    if isinstance(returned, types.BaseTuple):
        pairs = [(kind, builder.extract_value(result, k)) for k, kind in enumerate(returned)]
    else:
        pairs = [] if isinstance(returned, types.NoneType) else [(returned, result)]
    for k, (each, value) in enumerate(pairs):
        place = builder.gep(function.args[0], [word(k)])
        builder.store(_to_slot(builder, value, types.unliteral(each)), place)
    builder.ret(builder.zext(status.is_error, ir.IntType(32)))


def _array(context: Any, builder: Any, kind: Any, data: Any, size: Any) -> Any:
    """Emit Numba's representation of an array."""
    from gcodec.runtime import lowering

    element = context.get_data_type(kind.dtype)
    itemsize = size.type(context.get_abi_sizeof(element))
    data = builder.inttoptr(data, element.as_pointer())
    return lowering.array_of(context.get_value_type(kind), builder, data, size, itemsize)


def _from_slot(builder: Any, slot: Any, kind: Any) -> Any:
    """Emit the number in a slot."""
    if isinstance(kind, ir.IntType):
        return slot if kind.width == slot.type.width else builder.trunc(slot, kind)
    value = builder.bitcast(slot, ir.DoubleType())
    return value if kind == value.type else builder.fptrunc(value, kind)


def _to_slot(builder: Any, value: Any, kind: Any) -> Any:
    """Emit the contents of a slot for a number."""
    word = ir.IntType(64)
    if isinstance(kind, types.Float):
        if value.type != ir.DoubleType():
            value = builder.fpext(value, ir.DoubleType())
        return builder.bitcast(value, word)
    signed = isinstance(kind, types.Integer) and kind.signed
    if value.type.width == word.width:
        return value
    return builder.sext(value, word) if signed else builder.zext(value, word)


# --- typing ------------------------------------------------------------------------------------


class _Typing(Context):
    """Numba's typing context, which remembers the types of calls.

    It types `min` and `max` of numbers itself: Numba would compile a function for their types.
    """

    target: _Target
    resolved: dict[Any, Any]

    def load_additional_registries(self) -> None:
        """Do nothing: `_Target` begins with them."""

    def resolve_function_type(self, func: Any, args: Any, kws: Any) -> Any:
        if func in ("static_getitem", "static_setitem"):  # whose argument may be a slice
            return super().resolve_function_type(func, args, kws)
        key = func, args, tuple(kws.items())
        try:
            return self.resolved[key]
        except KeyError:
            from gcodec.runtime import lowering
        if lowering.is_choice(func, args):
            kinds = [types.unliteral(kind) for kind in args]
            resolved = templates.signature(self.unify_types(*kinds), *kinds)
        else:
            resolved = super().resolve_function_type(func, args, kws)
        if resolved is not None:
            self.resolved[key] = resolved
        return resolved


class Helper:
    """A helper, as the functions that call it see it.

    Parameters
    ----------
    function : function
        The helper; its global names are what Numba can type.
    inlined : bool
        Whether LLVM must inline it.
    """

    def __init__(self, function: Callable[..., Any], inlined: bool) -> None:
        self.function = function
        self.inlined = inlined
        self.type = types.Function(_template(self, inspect.signature(function)))

    def version(self, target: _Target, kinds: tuple[Any, ...]) -> _Compiled:
        """Return the helper, compiled for types that accept arguments of other types."""
        versions = target.helpers.setdefault(self, {})
        key = next((own for own in versions if _accept(own, kinds)), kinds)
        if key not in versions:
            compiled = target.compiled(self.function, key, inlined=self.inlined)
            versions[key] = compiled
            target.declare(compiled, compiled.description, [compiled.library])
        return versions[key]


class Linked:
    """A kernel, as the functions that call it see it: its code is in an object file of its own.

    Parameters
    ----------
    kernel : Kernel
        The kernel.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.type = types.Function(_template(self, inspect.signature(kernel.function)))

    def version(self, target: _Target, kinds: tuple[Any, ...]) -> _External:
        """Return the function that the object file of the kernel defines."""
        if self not in target.kernels:
            external = _External(self.kernel)
            target.kernels[self] = external
            target.declare(external, external, [])
        return target.kernels[self]


def _accept(parameters: tuple[Any, ...], kinds: tuple[Any, ...]) -> bool:
    """Return whether parameters accept arguments: read-only arrays accept all arrays."""
    return len(parameters) == len(kinds) and all(
        one == other
        or (
            isinstance(one, types.Array)
            and isinstance(other, types.Array)
            and one == other.copy(readonly=True)
        )
        for one, other in zip(parameters, kinds, strict=True)
    )


@typeof_impl.register(Helper)
@typeof_impl.register(Linked)
def _typeof(callee: Helper | Linked, context: Any) -> Any:
    return callee.type


def _template(callee: Helper | Linked, signature: inspect.Signature) -> Any:
    """Return the class through which Numba types the calls of a helper or kernel."""

    class Template(templates.AbstractTemplate):
        key = callee

        def generic(self, args: Any, kws: Any) -> Any:
            kinds = signature.bind(*args, **kws).args
            version = callee.version(self.context.target, kinds)
            typed = templates.signature(version.restype, *version.argtypes)
            return typed.replace(pysig=signature)

        def get_impl_key(self, sig: Any) -> Any:
            return callee.version(self.context.target, sig.args)

    return Template


# --- lowering ----------------------------------------------------------------------------------


class _Compiled:
    """A function in LLVM IR.

    Attributes
    ----------
    library : _Library
        Its module.
    description : numba.core.funcdesc.FunctionDescriptor
        Its names and types.
    argtypes, restype
        Numba's types of its parameters and its result.
    """

    def __init__(self, library: _Library, description: Any) -> None:
        self.library = library
        self.description = description
        self.argtypes, self.restype = description.argtypes, description.restype


_RESULTS = {"bool": types.boolean}  # whose own name is not in all releases of Numba


class _External(FunctionDescriptor):
    """Names and types of the function that the object file of a kernel defines."""

    def __init__(self, kernel: Kernel) -> None:
        from gcodec.runtime import kernel_cache

        results = kernel_cache.code_of(kernel).results
        kinds = [_RESULTS.get(name) or getattr(types, name) for name in results.split()]
        super().__init__(
            native=True,
            modname=None,
            qualname=kernel.symbol,
            unique_name=kernel.symbol,
            doc="",
            typemap=None,
            restype=kinds[0] if len(kinds) == 1 else types.Tuple(kinds),
            calltypes=None,
            args=list(inspect.signature(kernel.function).parameters),
            kws=None,
            argtypes=parameter_types(kernel.signature),
            mangler=_mangler(kernel.symbol),
        )


def _mangler(symbol: str) -> Callable[..., str]:
    """Return a function that gives a loop its name, and Numba's environment of it another one."""
    return lambda name, *args, **kws: f"{symbol}_env" if "NumbaEnv" in name else symbol


class _Context(CPUContext):
    """Numba's target, whose settings in the environment change no code."""

    enable_boundscheck = False  # each function's flags set it
    _sizes: dict[Any, int]

    def load_additional_registries(self) -> None:
        """Load what was declared since; `_Target` begins with what Numba declares."""
        for registry in list(self._registries):
            self.install_registry(registry)

    def get_abi_sizeof(self, ty: Any) -> int:
        """Remember sizes: LLVM finds each by parsing a module."""
        if ty not in self._sizes:
            self._sizes[ty] = super().get_abi_sizeof(ty)
        return self._sizes[ty]


class _Flags(compiler.Flags):
    """Numba's options, which its tables find by identity: comparing all of them takes long."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def copy(self) -> _Flags:
        """Return the same object, for nothing changes it once it is complete."""
        return self


def _flags(checked: bool, inlined: bool) -> Any:
    flags: Any = _Flags()
    flags.nrt = False  # kernels allocate no memory
    flags.error_model = "numpy"
    flags.boundscheck = checked
    flags.forceinline = inlined
    return flags


class _Target:
    """What kernels are compiled for, and the helpers that have been compiled for it."""

    def __init__(self, processor: Processor, checked: bool) -> None:
        generic = cpu_target.target_context
        _load_declarations(generic)
        self._flags = {inlined: _flags(checked, inlined) for inlined in (False, True)}
        self.helpers: dict[Helper, dict[tuple[Any, ...], _Compiled]] = {}
        self.kernels: dict[Linked, _External] = {}
        self._typing = copy.copy(cpu_target.typing_context)
        self._typing.__class__ = _Typing
        self._typing.resolved, self._typing.target = {}, self
        self.context = generic.subtarget(_internal_codegen=_Codegen(processor))
        self.context.__class__, self.context._sizes = _Context, {}
        self.declare = self.context.insert_user_function

    def compiled(
        self,
        function: Callable[..., Any],
        kinds: tuple[Any, ...],
        inlined: bool = False,
        symbol: str = "",
    ) -> _Compiled:
        """Type a function for types of its arguments, and lower it.

        A function without a `symbol` gets a name of its own in LLVM IR.
        """
        flags = self._flags[inlined]
        pipeline = _Pipeline(self._typing, self.context, None, kinds, None, flags, {})
        pipeline.state.metadata["symbol"] = symbol
        return pipeline.compile_extra(function)


def _load_declarations(generic: Any) -> None:
    """Load all that Numba declares, as its own first compilation does, but in fewer steps."""
    if "numba.np.arraymath" not in sys.modules:
        # That module looks for a BLAS by importing SciPy, which gcodec requires to be there.
        check, linalg.ensure_blas = linalg.ensure_blas, lambda: None
        try:
            CPUContext.load_additional_registries(generic)
        finally:
            linalg.ensure_blas = check
    generic.install_registry(builtin_registry)
    # Each declaration would load all others before it is added to these.
    generic.refresh = lambda: None
    try:
        cpu_target.typing_context.refresh()
    finally:
        del generic.refresh
    generic.refresh()


@functools.cache
def _target(processor: Processor, checked: bool) -> _Target:
    return _Target(processor, checked)


class _Passes(PassManager):
    """Numba's passes, without another analysis of the IR after each pass that changes it."""

    _ENFORCING = False


class _Pipeline(compiler.CompilerBase):
    """Numba's passes that kernels need, and `_Lowering`."""

    def define_pipelines(self) -> list[Any]:
        manager = _Passes("gcodec")
        for step in (
            TranslateByteCode,
            FixupArgs,
            IRProcessing,
            RewriteSemanticConstants,
            DeadBranchPrune,
            GenericRewrites,
            _SingleAssignment,
            DeadBranchPrune,
            NopythonTypeInference,
            _PhiRemoval,
            _Lowering,
        ):
            manager.add_pass(step, step.__name__)
        manager.finalize()
        return [manager]


@register_pass(mutates_CFG=False, analysis_only=False)
class _SingleAssignment(ReconstructSSA):
    """Numba's pass without the analysis of lifetimes, which only generators and objects need."""

    def run_pass(self, state: Any) -> bool:
        state.func_ir = reconstruct_ssa(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=False, analysis_only=False)
class _PhiRemoval(PreLowerStripPhis):
    """Numba's pass without the analysis of lifetimes."""

    def run_pass(self, state: Any) -> bool:
        state.func_ir = self._strip_phi_nodes(state.func_ir)
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


@register_pass(mutates_CFG=False, analysis_only=False)
class _Lowering(LoweringPass):
    """Lower a typed function to LLVM IR, and leave it there."""

    _name = "gcodec_lowering"

    def __init__(self) -> None:
        LoweringPass.__init__(self)

    def run_pass(self, state: Any) -> bool:
        from gcodec.runtime import lowering

        target, symbol = state.targetctx, state.metadata["symbol"]
        library = target.codegen().create_library(state.func_id.func_qualname)
        description = PythonFunctionDescriptor.from_specialized_function(
            state.func_ir,
            state.typemap,
            state.return_type,
            state.calltypes,
            mangler=_mangler(symbol) if symbol else target.mangler,
            inline=state.flags.forceinline,
            noalias=False,
            abi_tags=[],
        )
        with target.push_code_library(library):
            metadata = state.metadata
            lowering.Lower(target, library, description, state.func_ir, metadata).lower()
        state.library = library
        state.cr = _Compiled(library, description)
        return True


# --- machine code ------------------------------------------------------------------------------


class _Library(codegen.CPUCodeLibrary):
    """The LLVM module of a function, and of all functions that it calls."""

    _codegen: _Codegen

    def add_linking_library(self, library: Any) -> None:
        """Link with another module, but not with Numba's runtime: kernels allocate no memory."""
        if library is not rtsys.library:
            super().add_linking_library(library)

    def add_llvm_module(self, module: Any) -> None:
        """Simplify the functions of a module, and add them."""
        passes = self._codegen.passes(vectorized=False)
        simplify = passes.getFunctionPassManager()
        for function in module.functions:
            simplify.run(function, passes)
        self._final_module.link_in(module)

    def finalize(self) -> None:
        """Link what the function calls."""
        for library in dict.fromkeys(self._linking_libraries):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    def object_code(self, exported: Sequence[str], vectorized: bool) -> bytes:
        """Optimize the module, and return an object file that defines some of its functions."""
        self._ensure_finalized()
        module, passes = self._final_module, self._codegen.passes(vectorized)
        for value in (*module.functions, *module.global_variables):
            if not value.is_declaration and value.name not in exported:
                value.linkage = "internal"
        passes.getModulePassManager().run(module, passes)
        module.verify()
        return self._codegen.machine.emit_object(module)


class _Codegen(codegen.CPUCodegen):
    """Numba's code generator, for a chosen processor."""

    _library_class = _Library

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        super().__init__("gcodec")
        self.machine = processors.machine(processor)

    def passes(self, vectorized: bool) -> Any:
        """Return the builder of LLVM's passes; for `vectorized`, see `jit.kernel`."""
        llvm = processors.binding()
        options = llvm.create_pipeline_tuning_options(speed_level=3 if vectorized else 1)
        options.loop_vectorization = options.loop_unrolling = vectorized
        return llvm.create_pass_builder(self.machine, options)

    def _customize_tm_options(self, options: dict[str, Any]) -> None:
        options.update(processors.machine_options(self._processor))

    def _customize_tm_features(self) -> str:
        return self._processor.features

    def _add_module(self, module: Any) -> None:
        """Load nothing."""
