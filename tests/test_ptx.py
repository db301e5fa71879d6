"""Reading PTX: statements, blocks, lines, live registers."""

import pytest

from sgemm_lab.run.nvrtc import compile_ptx
from sgemm_lab.simt.ptx import PtxError, Reg, Symbol, parse, reads_writes, successors

HEAD = ".version 8.0\n.target sm_75\n.address_size 64\n"
LOOP = (
    HEAD
    + """
.visible .entry f(.param .u64 f_param_0, .param .u32 f_param_1, .param .align 8 .b8 f_param_2[12])
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
    .shared .align 4 .b8 tile[64];
    .loc 1 3 5
    ld.param.u32 %r1, [f_param_1]; // a comment with ; and {
    mov.u32 %r2, 0;
$L_top:
    .loc 1 7 9
    add.s32 %r2, %r2, %r1;
    setp.lt.s32 %p1, %r2, 100;
    @%p1 bra $L_top;
    .loc 1 0 0
    { .reg .b32 q; mov.u32 q, %r2; }
    bar.sync 0;
    ret;
}
"""
)


def test_blocks_end_at_labels_branches_and_barriers():
    kernel = parse(LOOP).kernel("f")
    exits = [block.exit for block in kernel.blocks]
    assert exits == [("next", 1), ("branch", "%p1", False, 1, 2), ("barrier", 3), ("return",)]
    assert [successors(b) for b in kernel.blocks] == [(1,), (1, 2), (3,), ()]


def test_parameters_have_the_offsets_of_the_abi():
    params = parse(LOOP).kernel("f").params
    assert [(p.type, p.offset, p.size) for p in params] == [
        ("u64", 0, 8),
        ("u32", 8, 4),
        ("b8", 16, 12),
    ]


def test_every_instruction_knows_its_source_line_and_line_zero_keeps_the_last():
    kernel = parse(LOOP).kernel("f")
    assert [i.line for b in kernel.blocks for i in b.instructions] == [3, 3, 7, 7, 7]


def test_a_register_is_live_where_a_later_instruction_may_read_it():
    kernel = parse(LOOP).kernel("f")
    assert kernel.live_in[0] == frozenset()
    assert kernel.live_in[1] == {"%r1", "%r2"}
    assert kernel.live_in[2] == {"%r2"}
    assert kernel.live_in[3] == frozenset()


def test_a_store_reads_all_its_registers_and_a_guarded_move_reads_its_target():
    text = LOOP.replace("bar.sync 0;", "st.shared.u32 [%r1+4], %r2; @!%p1 mov.u32 %r3, %r1;")
    block = parse(text).kernel("f").blocks[2]
    assert reads_writes(block.instructions[1]) == (["%r1", "%r2"], [])
    assert reads_writes(block.instructions[2]) == (["%r1", "%p1", "%r3"], ["%r3"])
    assert block.instructions[1].operands[0].base == Reg("%r1")
    assert block.instructions[1].operands[0].offset == 4


def test_constant_memory_arrives_with_its_bytes():
    ptx = compile_ptx(
        "__constant__ float t[3] = {1.0f, 2.0f, -0.5f};"
        'extern "C" __global__ void f(float* o, int i) { o[0] = t[i]; }'
    )
    variable = parse(ptx.text).variables["t"]
    assert variable.init == bytes.fromhex("0000803f00000040000000bf")


def test_a_missing_kernel_names_those_that_are_there():
    with pytest.raises(PtxError, match=r"no kernel named 'g'.*has: f"):
        parse(LOOP).kernel("g")


def test_a_mangled_name_is_recognised_and_printf_is_named():
    text = "__global__ void f(float* o) { o[0] = 1; }"
    with pytest.raises(PtxError, match=r'_Z1fPf\. Kernel names are mangled: put extern "C"'):
        parse(compile_ptx(text).text).kernel("f")
    text = 'extern "C" ' + text.replace("o[0] = 1;", 'printf("%f", o[0]);')
    with pytest.raises(PtxError, match="printf is not covered"):
        parse(compile_ptx(text).text)


def test_a_function_that_was_not_inlined_is_refused_with_the_way_out():
    text = (
        "__device__ __noinline__ float g(float x) { return x * x; }"
        'extern "C" __global__ void f(float* o) { o[0] = g(o[1]); }'
    )
    with pytest.raises(PtxError, match="__forceinline__"):
        parse(compile_ptx(text).text)


SCOPES = (
    HEAD
    + """
.visible .entry f(.param .u64 f_param_0)
{
    .reg .pred %p<2>;
    .reg .b32 %r<4>;
L:  mov.u32 %r1, 1;
    { .reg .pred t; L: setp.eq.s32 t, %r1, 0; @t bra L; }
    { .reg .b32 t, %r1; L: mov.b32 t, 5; mov.b32 %r1, t; @%p1 bra L; }
    bra L;
}
"""
)


def test_a_scope_has_registers_and_labels_of_its_own():
    kernel = parse(SCOPES).kernel("f")
    assert [block.exit[0] for block in kernel.blocks[:4]] == ["next", "branch", "branch", "jump"]
    assert [block.exit[-2] for block in kernel.blocks[1:3]] == [1, 2]
    assert kernel.blocks[3].exit == ("jump", 0)
    outer, inner = (kernel.blocks[n].instructions[-1].operands[0].name for n in (0, 2))
    assert outer == "%r1" and inner != outer
    types = {
        kernel.registers[block.instructions[0].operands[0].name] for block in kernel.blocks[1:3]
    }
    assert types == {"pred", "b32"}


def test_only_shared_variables_that_a_kernel_names_are_its_own():
    shared = ".shared .align 4 .b8 mine[64];\n.shared .align 4 .b8 mine2[128];\n"
    text = LOOP.replace(".visible", shared + ".visible").replace("q, %r2", "q, mine")
    assert set(parse(text).kernel("f").variables) == {"tile", "mine"}


def test_a_guarded_trap_lets_the_other_lanes_go_on():
    kernel = parse(LOOP.replace("bar.sync 0;", "@%p1 trap;")).kernel("f")
    assert kernel.blocks[2].exit == ("return",) and kernel.blocks[2].instructions[-1].guard


@pytest.mark.parametrize("old, new, says", [
    ("bra $L_top", "bra $L_nowhere", r"f: no label named \$L_nowhere \(line 7"),
    ("bar.sync 0;", "{T: .branchtargets $L_top; @%p1 brx.idx %r1, T;}", "brx.* under a predicate"),
    ("%r2, 0;", "%r2, 1.5;", r"cannot read the number 1\.5: .*0f3FC00000"),
    ("%r2, 0;", "%r2, 09;", "cannot read the number 09"),
    ("q, %r2", "q, !%p1", "a negated operand, !%p1"),
    (".reg .b32 q;", ".reg .v2 .u32 q;", r"registers of type \.v2"),
])  # fmt: skip
def test_ptx_that_cannot_be_read_is_named(old, new, says):
    with pytest.raises(PtxError, match=says):
        parse(LOOP.replace(old, new))


def test_numbers_may_be_octal_and_symbols_moved():
    kernel = parse(LOOP.replace("%r2, 0;", "%r2, 017; mov.u32 %r3, tile+4;")).kernel("f")
    assert kernel.blocks[0].instructions[1].operands[1].value == 15
    assert kernel.blocks[0].instructions[2].operands[1] == Symbol("tile", 4)


def test_discard_reads_its_address():
    text = LOOP.replace("bar.sync 0;", "discard.global.L2 [%r1], 128;")
    assert reads_writes(parse(text).kernel("f").blocks[2].instructions[1]) == (["%r1"], [])
