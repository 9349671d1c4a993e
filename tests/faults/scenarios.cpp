// Scenarios on small inputs: a run takes milliseconds. Together they write every container, new and replaced,
// and read every container.
#include "scenarios.hpp"

#include <sstream>

namespace ejk::faults {

namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::istringstream in(line);
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

// An HDF5 file with other things in it, a folder and an archive with arrays of an earlier run.
const std::string kQkv =
    "ejk generate attention-inputs --seq 32 --batch 2 --heads 2 --head-dim 8 -q -o in/qkv.h5; "
    "ejk convert in/qkv.h5 -q -o in/qkv/; ejk convert in/qkv.h5 -q -o in/qkv.npz --compression 6; ";
const std::string kInfo = "ejk mask-info --mask causal --shape 64x64 --block 32x32 -q -o ";
const std::string kOldH5 = "ejk generate lens --count 5 -q -o out/y.h5:/other/lens; ";

}  // namespace

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = [] {
    std::vector<Scenario> list;
    const auto add = [&](std::string name, std::string prepare, const std::string& line) -> Scenario& {
      return list.emplace_back(Scenario{std::move(name), std::move(prepare), words_of(line)});
    };
    const std::string info = "mask-info --mask local(left=20,right=0) --shape 64x64 --block 16x16 ";

    add("npy-new", "cp $DATA/lens.npy in/", "cu-seqlens in/lens.npy -o out/cu.npy");
    add("npy-old", "cp $DATA/lens.npy in/; echo old >out/x.npy",
        "convert in/lens.npy --dtype float32 -o out/x.npy");
    add("npy-sync", "cp $DATA/lens.npy in/; echo old >out/x.npy; ln -s x.npy out/link.npy",
        "convert in/lens.npy --dtype float32 -o out/link.npy --sync");
    add("npy-threads",
        "ejk generate lens --count 1300000 --distribution zipf -q -o in/x.npy; echo old >out/x.npy",
        "convert in/x.npy -o out/x.npy --dtype int64 --threads 2 -q");
    add("folder-new", ":", info + "-o out/d/");
    add("folder-old", kInfo + "out/d/", info + "-o out/d/ -q");
    add("folder-sync-new", ":", info + "-o out/d/ --sync");
    add("folder-sync-old", kInfo + "out/d/; rm out/d/block_mask.npy", info + "-o out/d/ --sync");
    add("npz-new", ":", info + "-o out/m.npz");
    add("npz-old", kInfo + "out/m.npz", info + "-o out/m.npz -q --sync");
    add("npz-compressed", kQkv, "convert in/qkv/ --dtype float64 --compression 9 -o out/x.npz");
    add("safetensors-new", ":", info + "-o out/m.safetensors");
    add("safetensors-old", kQkv + "echo old >out/x.safetensors",
        "convert in/qkv.npz -o out/x.safetensors -q --sync");
    add("safetensors-threads",
        "ejk generate lens --count 1300000 --distribution zipf -q -o in/x.npy; "
        "ejk convert in/x.npy -o in/x.safetensors -q",
        "convert in/x.safetensors -o out/x.safetensors --dtype int64 --threads 2 -q");
    add("h5-new", ":", info + "-o out/y.h5");
    add("h5-group", kOldH5, info + "-o out/y.h5:/a/b --sync");
    add("h5-replaced", kOldH5 + kInfo + "out/y.h5", info + "-o out/y.h5 --overwrite -q");
    add("h5-compressed", kQkv + kOldH5, "convert in/qkv.npz --compression 4 -o out/y.h5 --json");
    // Elements written past the process that has the library, and chunks decoded by threads of it.
    const std::string large = "ejk generate lens --count 1300000 --distribution zipf -q -o in/x.npy; ";
    add("h5-threads", large + kOldH5, "convert in/x.npy --threads 2 -o out/y.h5:/x -q");
    add("h5-chunks", large + "ejk convert in/x.npy -q -o in/x.h5:/lens --compression 1; echo old >out/x.npy",
        "convert in/x.h5:/lens --threads 3 -o out/x.npy -q");
    add("stdout-npy", "cp $DATA/cu_seqlens.npy in/", "lens - -o -").input = "in/cu_seqlens.npy";
    add("stdout-text", "cp $DATA/masks.npz in/", "mask in/masks.npz:window[:8,:8] -q");
    add("stdout-json", R"(echo '{"num_warps": 4}' >in/fwd.json)", "params to-dict in/fwd.json");
    add("grouped-matmul", "ejk convert $DATA/experts.h5 -q -o in/e/",
        "grouped-matmul $DATA/experts.h5:/tokens in/e/experts.npy in/e/group_sizes.npy -o out/p.npy --threads 2");
    add("attention", kQkv,
        "attention in/qkv.h5:/query in/qkv/key.npy in/qkv.npz:value --mask causal -o out/y.h5 --threads 2");
    add("attention-grad", kQkv,
        "attention-grad in/qkv.h5:/query in/qkv.h5:/key in/qkv.h5:/value in/qkv.h5:/query "
        "--mask causal -o out/g.npz --threads 1");
    add("generate", kOldH5, "generate attention-inputs --seq 8 --heads 2 --head-dim 4 -o out/y.h5:/in");
    add("pack", kQkv + "ejk generate masks --batch 2 --seq 32 -q -o in/pad.npy",
        "pack in/qkv.npz:query in/pad.npy -o out/p/");
    add("pictures", "echo old >out/m.png; echo old >out/m.html",
        "mask --mask causal --shape 32x32 -o out/m.npy --picture out/m.png --html out/m.html --sync")
        .one_by_one = true;
    add("pages", "echo old >out/m.svg", info + "--picture out/m.svg --html out/m.html -q");
    add("segment-mask", "cp $DATA/segment_ids.npy in/",
        "segment-mask in/segment_ids.npy[:1,:40] --separate -o out/s.npz");
    add("compare", kQkv, "compare in/qkv.h5 in/qkv.npz");
    add("compare-differs",
        kQkv +
            "ejk generate attention-inputs --seq 32 --batch 2 --heads 2 --head-dim 8 --seed 3 -q -o in/b.h5",
        "compare in/qkv/ in/b.h5");
    add("check", "cp $DATA/cu_seqlens.npy in/", "check cu-seqlens in/cu_seqlens.npy");
    add("info-headers",
        kQkv +
            "mkdir in/m; ejk convert in/qkv.npz -q -o in/m/x.safetensors; cp $DATA/../tests/golden/nested.pt in/",
        "info in/m in/nested.pt");
    add("info", kQkv + "cp $DATA/text.h5 in/", "info in/qkv.h5 in/qkv in/qkv.npz in/text.h5");
    return list;
  }();
  return all;
}

}  // namespace ejk::faults
