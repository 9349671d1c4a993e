// Every command of `ejk help symptoms`, run on files that have the row's fault.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "io/support.hpp"
#include "support/shell.hpp"

namespace {

struct Row {
  std::string seen, command;
};

std::vector<Row> rows_of_help() {
  std::istringstream page(ejk::test::shell("'" EJK_PROGRAM "' help symptoms").text);
  std::vector<Row> rows;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("    "))
      rows.back().command += line + "\n";
    else if (line.starts_with("  "))
      rows.push_back({line.substr(2, line.find(':') - 2), ""});
  }
  return rows;
}

// The files that the commands name, unless a fault replaces them.
constexpr const char* kSetUp = R"(
ejk generate attention-inputs --batch 2 --seq 200 --heads 4 --head-dim 16 --std 1 -o in.npz
ejk convert in.npz:query -o q.npy; ejk convert in.npz:value -o dout.npy
ejk convert in.npz:key[:,:,:2] -o k.npy; ejk convert in.npz:value[:,:,:2] -o v.npy
ejk convert '[0, 60, 61, 150, 200]' -o cu.npy
ejk convert '[[3, 7, 6], [5, 2, 0]]' -o block_table.npy; ejk convert '[40, 20]' -o seq_lens.npy
e=$DATA/experts.h5
ejk convert $e:/tokens -o x.npy; ejk convert $e:/experts -o w.npy
ejk convert $e:/group_sizes -o group_sizes.npy
attention() { ejk attention q.npy k.npy v.npy "$@"; }
)";

struct Fault {
  const char *seen, *setup, *shown;
};

constexpr Fault kFaults[] = {
    {"loss falls and evaluation is wrong", "attention -o out.npy --field out", "the mask is ignored"},
    {"documents influence each other", "attention --mask causal -o out.npy --field out",
     "'documents(cu.npy)' is left out"},
    {"packed training is worse than padded", "ejk position-ids '[0, 200]' -o position_ids.npy",
     "sequence 1 begins here"},
    {"a packed batch fails, or is one document", "ejk convert '[60, 1, 89, 50]' -o cu.npy",
     "not 0; are these lengths, or ends?"},
    {"padding on the left changes a result",
     "ejk sequence-ids '[0, 30, 200]' -o one.npy; ejk chunk one.npy --chunk-size 200 -o row.npy; "
     "ejk convert '[0, 0]' -o both.npy; ejk convert 'rows(row.npy, both.npy)' -o ids.npy; "
     "attention --mask causal -o out.npy --field out",
     "'segments(ids.npy)' is left out"},
    {"a mask does the opposite", "ejk mask --mask '~causal' --shape 200x200 -o mask.npy",
     "inverted  (0,)          -  no query sees the key at its own position"},
    {"long text degrades a window model", "attention --mask 'local(128, 0)' -o out.npy --field out",
     "the window is one key longer at the left"},
    {"right at 512 tokens, wrong at 1,024",
     "ejk generate attention-inputs --seq 700 --batch 1 --heads 2 --head-dim 16 --std 1 -o in.npz; "
     "for n in query key value; do ejk convert in.npz:$n -o ${n%${n#?}}.npy; done; "
     "attention --mask 'local(511, 0)' -o out.npy --field out",
     "the mask is local(511, 0)"},
    {"a block-sparse kernel misses keys",
     "ejk mask-info --mask 'causal & documents(cu.npy)' --block 50x50 -o info.h5; "
     "ejk convert '[0, 60, 61, 160, 200]' -o cu.npy",
     "each pair of the mask is computed"},
    {"which keys does a block list visit?",
     "ejk mask-info --mask causal --shape 200x200 --block 50x50 -o info.h5",
     "blocks skipped           37.5 %"},
    {"a sparse kernel is as slow as dense", ":", "(128, 128)        3     0     25 %"},

    {"weights are flat, or one key takes all", "attention --scale 0.0625 -o out.npy --field out",
     "the scale is applied twice"},
    {"NaN rows",
     "ejk mask --mask 'causal(offset=-2)' --shape 200x200 -o mask.npy; "
     "attention mask.npy -o out.npy --field out; "
     "for at in 128 51328; do head -c 512 /dev/zero | tr '\\000' '\\377' | "
     "dd of=out.npy bs=1 seek=$at conv=notrunc; done",
     "queries without a key are NaN"},
    {"garbage or zeros after N tokens",
     "attention --mask causal -o out.npy --field out; truncate -s -20480 out.npy; truncate -s +20480 out.npy",
     "as if never written in batch entry 1, queries 120-199"},
    {"a bfloat16 kernel is off by 2e-2",
     "for n in q k v; do ejk convert $n.npy --dtype bfloat16 -o $n.h5; ejk convert $n.h5 -o $n.npy; done; "
     "attention --mask causal -o out.npy --field out",
     "is right"},
    {"only some heads are right (GQA)",
     "ejk attention q.npy k.npy[:,:,:1] v.npy[:,:,:1] --mask causal -o out.npy --field out",
     "all query heads use key/value head 0"},
    {"batch entry 0 alone is right",
     "ejk convert '[0, 0]' -o 0.npy; ejk attention q.npy 'rows(k.npy, 0.npy)' 'rows(v.npy, 0.npy)' "
     "--mask causal -o out.npy --field out",
     "batch entry 1 holds the keys and values of batch entry 0"},
    {"lse is 1.4427 times as large", "attention --mask causal --lse-base 2 -o out.npz",
     "lse is a logarithm to base 2"},
    {"split-K or ring attention is off",
     "ejk attention q.npy k.npy[:,:100] v.npy[:,:100] --lse-base 2 -o a.npz; "
     "ejk attention q.npy k.npy[:,100:] v.npy[:,100:] --lse-base 2 -o b.npz; "
     "ejk merge-states a.npz:out a.npz:lse b.npz:out b.npz:lse -o out.npy --field out",
     "2 parts of the keys are joined with an lse to base 2"},
    {"large scores alone are wrong", "attention -o out.npy --field out", "the soft cap is left out"},
    {"the first rows are off most",
     "ejk convert q.npy[0,0,:,0] -o sinks.npy; attention -o out.npy --field out", "the sinks are left out"},

    {"gradients are off by a factor",
     "ejk attention-grad q.npy k.npy v.npy dout.npy --mask causal -o g.npz; mkdir grads; "
     "for n in dk dv; do ejk convert g.npz:$n -o grads/$n.npy; done; "
     "ejk safe-divide g.npz:dq '[4]' -o grads/dq.npy",
     "the gradient is multiplied by the scale twice; dk and dv are right"},
    {"dk and dv are too small with GQA",
     "ejk attention-grad q.npy[:,:,::2] k.npy v.npy dout.npy[:,:,::2] -o dk.npy --field dk",
     "only the first query head of each key head is counted"},

    {"decoding is wrong, prefill right",
     "ejk convert q.npy[:,196:] -o one.npy; mv one.npy q.npy; attention --mask causal -o out.npy --field out",
     "queries and keys are aligned at the top left"},
    {"another request's text appears", "ejk convert '[[3, 7, 3], [5, 2, 0]]' -o block_table.npy",
     "again for sequence 0"},
    {"text degrades at a page's end",
     "ejk generate attention-inputs --batch 8 --seq 16 --heads 2 --head-dim 16 --std 1 -o c.npz; "
     "ejk convert c.npz:key -o kc.npy; ejk convert c.npz:value -o vc.npy; "
     "ejk convert q.npy[0,:2] -o two.npy; mv two.npy q.npy; "
     "ejk attention q.npy kc.npy vc.npy --block-table '[[3, 7, 4], [5, 2, 0]]' --seq-lens seq_lens.npy "
     "-o out.npy --field out",
     "the last page of sequence 0 is page 4, not page 6"},
    {"new tokens are forgotten", "ejk convert '[55, 36]' -o slots.npy", "position 39 of sequence 0 is at"},

    {"tokens get another expert's output",
     "ejk convert '[2, 1, 0, 3]' -o p.npy; "
     "ejk grouped-matmul x.npy 'rows(w.npy, p.npy)' group_sizes.npy -o y.npy",
     "groups 0 and 2 hold the weights of each other"},
    {"the first or last row of experts is wrong", "ejk grouped-matmul x.npy w.npy '[10, 0, 17, 5]' -o y.npy",
     "the end of a group is one row late"},
    {"a layer is wrong, its products right",
     "ejk convert $e:/tokens[:,4:8] -o logits.npy; ejk convert $e:/tokens[:,:4] -o x.npy; "
     "ejk convert $e:/experts[:,:4] -o w13.npy; ejk convert $e:/experts[:,4:8,:4] -o w2.npy; "
     "ejk moe x.npy w13.npy w2.npy --logits logits.npy --top-k 2 -o y.npy",
     "the weights of a token are not renormalised"},
    {"rows are multiplied several times", "ejk convert '[50, 120, 16384]' -o group_sizes.npy",
     "ends of groups?"},
    {"prefill and decoding disagree",
     "ejk convert '[[0, 1], [1, 7]]' -o topk_ids.npy; ejk convert '[[1, 0], [1, 6]]' -o expected_ids.npy",
     "with the same experts       50 %"},
    {"one expert-parallel rank is slower", "ejk convert '[[0, 1], [0, 2], [1, 7], [0, 1]]' -o topk_ids.npy",
     "rows of the largest rank    6 rows"},

    {"a checkpoint talks nonsense",
     "mkdir model; ejk convert $DATA/model-nvfp4.safetensors:model.layers.0.mlp.experts.0.up_proj.weight "
     "-o model/up_proj.weight_packed.npy",
     "scale-missing  error"},
    {"nonsense, although scales are valid",
     "mkdir model original; cp $DATA/model-nvfp4.safetensors model; cp $DATA/model-bf16.safetensors original",
     "in layout 128x4 were read as linear"},
    {"fp8 is off by a factor",
     "attention -o expected.npy --field out; ejk safe-divide expected.npy '[4]' -o out.npy",
     "0.25 times what it should be"},

    {"results change from run to run",
     "for n in 1 2 3; do cp q.npy run$n.npy; done; "
     "printf '@@@' | dd of=run2.npy bs=1 seek=1933 conv=notrunc",
     "equal  no"},
    {"logits differ from the reference",
     "mkdir actual expected; for n in 0 1 2 3; do ejk convert q.npy[:,:,$n] -o expected/layers.$n.npy; done; "
     "cp expected/* actual; cp actual/layers.0.npy actual/layers.2.npy",
     "1 of 4 arrays differs, layers.2"},
    {"one context-parallel rank is slower", ":", "contiguous        1.81"},
    {"context parallelism changes the loss",
     "ejk cp-order --order contiguous --ranks 4 --tokens 64 -o order.npy --field order",
     "token 56 of head-tail is here"},
    {"rows have the values of their neighbours",
     "ejk convert q.npy[:,1:] -o out.npy; ejk convert q.npy[:,:-1] -o expected.npy",
     "index i of axis 1 holds what belongs to i + 1"},

    {"the test passes, the kernel is wrong", ":", "'local(left=255,right=0)' excludes nothing at 200"},
    {"a test of experts passes for zeros", ":", "every element is 0; results are up to"},
    {"inputs that show each fault are wanted", ":", "reveals           17 of 17 faults"},
};

}  // namespace

TEST_CASE("every command of the help of symptoms shows the fault of its row") {
  const std::vector<Row> rows = rows_of_help();
  CHECK(rows.size() == std::size(kFaults));
  const std::string program = std::filesystem::path(EJK_PROGRAM).parent_path();
  for (const Row& row : rows) {
    const auto* fault = std::find_if(std::begin(kFaults), std::end(kFaults),
                                     [&](const Fault& f) { return f.seen == row.seen; });
    REQUIRE_MESSAGE(fault != std::end(kFaults), row.seen);
    const ejk::test::Folder folder;
    const ejk::test::Printed printed = ejk::test::shell(
        fmt::format("exec 2>&1; cd '{}'; PATH='{}':$PATH; DATA='{}'\n"
                    "( set -e\n{}\n{} ) >log 2>&1 || {{ cat log; exit 99; }}\n{}",
                    folder.path(), program, EJK_TEST_DIR "/../data", kSetUp, fault->setup, row.command));
    CAPTURE(row.command);
    CAPTURE(printed.text);
    CHECK((printed.status == 0 || printed.status == 1));
    // A verdict is before the first empty line.
    const bool has_verdict = row.command.find("--explain") != std::string::npos;
    CHECK(printed.text.find(fault->shown) < (has_verdict ? printed.text.find("\n\n") : printed.text.size()));
  }
}
