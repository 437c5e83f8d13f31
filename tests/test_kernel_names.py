"""Names of kernels as profilers print them, and which of them mean the same."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.kernel_names import NameForms, forms_table, name_forms

PUBLIC = Path(__file__).resolve().parents[2] / "shared" / "kernel_names.tsv"
CUPTI = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
FUNCTION = "vectorized_elementwise_kernel"
SIMPLIFIED = f"{FUNCTION}<4,CUDAFunctor_add<float>,array<char*,3>>"


def test_no_names() -> None:
    assert forms_table([]).num_rows == 0
    assert name_forms("") == NameForms("", "", "", True)


def test_forms_of_a_name() -> None:
    signature = f"at::native::{FUNCTION}<4,at::native::CUDAFunctor_add<float>,std::array<char*,3>>"
    assert name_forms(CUPTI) == NameForms(signature, SIMPLIFIED, FUNCTION, False)
    assert forms_table([CUPTI]).to_pylist() == [
        {"name": CUPTI, "signature": signature, "simplified": SIMPLIFIED, "function": FUNCTION, "is_bare": False}
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CUPTI, CUPTI.replace(" >", ">").replace("char*", "char *").replace("3ul", "(unsigned long)3")),
        (CUPTI, CUPTI.partition("(int,")[0] + "(int, T2, T3)"),
        ("k<__nv_bfloat16 const*>(int)", "void k<const __nv_bfloat16 *>(int)"),
        ("k<true, -1>()", "k<(bool)1, (int)-1>()"),
        ("void vllm::k<(vllm::Kind)0>(int)", "void vllm::k<0>(int)"),
        ("std::enable_if<!(false), void>::type ns::k<int>(int)", "std::enable_if<!T7, void>::type ns::k<int>(T13)"),
        ("ns::(anonymous namespace)::k<int>(int)", "ns::<unnamed>::k<int>(int)"),
        ("void (anonymous namespace)::k(int)", "unnamed>::k(int)"),
        ("void k<(anonymous namespace)::T<2> >(int)", "void k<unnamed>::T<2>>(int)"),
        ("k<f(T&)::{lambda(float)#1}>(int)", "k<f(T &)::[lambda(float) (instance 1)]>(int)"),
        ("k<float>(int) [clone .kd]", "k<float>(int)"),
    ],
)
def test_two_spellings_of_one_name(one: str, other: str) -> None:
    assert name_forms(one).signature == name_forms(other).signature


def test_lambdas_of_pytorch_as_new_versions_of_ncu_print_them() -> None:
    cupti = (
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
        "::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, "
        "std::array<char*, 2ul> >(int, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3})"
    )
    ncu = (
        "void unrolled_elementwise_kernel<direct_copy_kernel_cuda(TensorIteratorBase &)::[lambda() (instance 3)]"
        "::operator ()() lambda() (instance 7)]::operator ()() lambda(float) (instance 1)], array<char *, 2>>(int, T1)"
    )
    assert name_forms(cupti).simplified == name_forms(ncu).simplified
    assert name_forms(cupti.replace("#7", "#8")).simplified != name_forms(ncu).simplified


@pytest.mark.parametrize(
    ("name", "function", "is_bare"),
    [
        ("nvjet_hsh_128x64_64x8_1x2_h_bz_TNT", "nvjet_hsh_128x64_64x8_1x2_h_bz_TNT", True),
        ("vllm::act_and_mul_kernel", "act_and_mul_kernel", True),
        ("vllm::act_and_mul_kernel(int)", "act_and_mul_kernel", False),
        ("void cutlass::Kernel2<cutlass_80_tensorop>(cutlass_80_tensorop::Params)", "Kernel2", False),
        ("_Z10dmatrixmulPfiiS_iiS_", "dmatrixmul", True),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi", FUNCTION, True),
        ("_ZN12_GLOBAL__N_14fillEPf", "fill", True),
        ("_Znot_mangled", "_Znot_mangled", True),
    ],
)
def test_the_name_of_the_function(name: str, function: str, is_bare: bool) -> None:
    assert (name_forms(name).function, name_forms(name).is_bare) == (function, is_bare)


@pytest.mark.parametrize("other", [CUPTI.replace("add", "mul"), CUPTI.replace("<4,", "<2,"), FUNCTION])
def test_other_instances_of_a_template_differ(other: str) -> None:
    assert name_forms(other).simplified != SIMPLIFIED


@pytest.mark.skipif(not PUBLIC.is_file(), reason="no list of public kernel names beside this checkout")
def test_names_of_public_traces_without_their_namespaces() -> None:
    """As new versions of ncu print them: no namespaces, lambdas of their own, other spaces."""
    with PUBLIC.open(newline="") as file:
        names = [row["name"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    assert len(names) > 1_000
    for name in names:
        short = re.sub(r"\b[A-Za-z_]\w*::(?=[\w({])", "", name.replace("(anonymous namespace)::", ""))
        short = re.sub(r"\{lambda\(([^{}]*?)\)#(\d+)\}", r"[lambda(\1) (instance \2)]", short)
        short = short.replace(" >", ">").replace("*", " *").replace("const::[", "")
        assert name_forms(short).simplified == name_forms(name).simplified


SPACED = {"ns::b": "ns :: b", "c<int>": "c< int >", "d*": " d *", "unsigned long": "unsigned  long", "e[2]": "e [2] "}


@given(st.lists(st.sampled_from(sorted(SPACED)), min_size=1, max_size=5))
def test_spaces_make_no_difference_to_any_form(arguments: list[str]) -> None:
    """The join relies on it: kernels of one signature are compared as one function."""
    plain, spaced = (",".join(printed) for printed in (arguments, map(SPACED.__getitem__, arguments)))
    forms = name_forms(f"void ns::k<{plain}>(int)")
    assert forms == name_forms(f"void ns::k<{spaced}>(int)")
    assert forms == NameForms(f"ns::k<{plain}>", f"k<{plain}>".replace("ns::", ""), "k", False)


@given(st.text("ab:<>()[]{},_Z 1*&", max_size=30))
def test_any_text_has_forms(text: str) -> None:
    found = name_forms(text)
    if not text.startswith("_Z"):
        assert found.function in found.simplified
        assert len(found.simplified) <= len(found.signature)
