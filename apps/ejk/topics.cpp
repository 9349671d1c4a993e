// Help pages about subjects (references, masks, ...), formatted by hand for 80 columns; help.cpp appends the
// lists of options, arrays and keys.
//
// tests: tests/cli/program/topics.case

#include <fmt/format.h>

#include "help.hpp"
#include "masks.hpp"

namespace ejk::app {

namespace {

constexpr std::string_view kArrays = R"(Arrays: how they are named, read and written

Naming an array
  One word, a reference, names one array:
    a.npy             a NumPy file (formats 1 to 3, C or Fortran order, any byte
                      order)
    a.npz:name        a member of an .npz file, stored or deflated; the name may
                      be left out where there is only one
    a.h5:/group/name  an HDF5 dataset (.h5 .hdf5 .hdf .he5), contiguous, in
                      chunks, gzip or lzf; the path may be left out where there
                      is only one
    a.safetensors:name
                      a tensor of a safetensors file; names may contain dots,
                      slashes and colons
    model/:name       a tensor of a model in several safetensors files: of a
                      folder with one *.safetensors.index.json, of such an index
                      itself, or of a folder of .safetensors files; else of
                      PyTorch's pytorch_model*.bin and *.bin.index.json
    a.pt:key.sub[0]   a tensor in a file of torch.save (.pt .pth), by its path
                      through dicts, lists and tuples; where several arrays are
                      read, all below a.pt:key. The pickle is interpreted, never
                      run: objects that are not tensors are left out, with a
                      warning that names their classes. Only read
    -                 an .npy stream: stdin (for one input), or stdout (-o -)
  An input file is recognized by its first bytes, not its suffix: a.nc:/x and
  a.mat:/x name datasets if these files are HDF5. A pipe is recognized by its
  name. A folder of .npy files contains an array for each, NAME.npy.
  An input may end in a basic slice of NumPy (integers, start:stop:step with a
  step of at least 1, and ...); only that part is read. Shells need quotes:
    ejk info 'a.npy[0,:,128:256]' 'a.h5:/layer0/mask[..., ::2]'
  If a name ends in brackets itself, [...] follows it, but not in a.pt:
    ejk info 'a.h5:/x[1][...]' 'a.pt:blocks[1][:,0]'
  Whole numbers and bools may stand there themselves, as Python prints a list,
  an array or a tensor; a file of such a name begins with ./:
    ejk check cu-seqlens '[0, 144, 432]'
    ejk lens 'tensor([0, 144, 432], dtype=torch.int32)'
  Without a dtype they are int64. Floats are refused: print rounds them.

Quantised arrays
  Wherever an input is named, one of these may stand. It is decoded to float32
  as it is read; VALUES, SCALES and GLOBAL are references, GLOBAL and the SCALES
  of fp8 also a number.
    fp8(VALUES, SCALES)            8-bit floats; one scale, or those of rows
                                   (also (rows,) and (experts, rows)), columns,
                                   experts or blocks: block=128x128, which names
                                   ending with _scale_inv or .scale imply; else
                                   blocks of a power of two that the shapes
                                   divide into
    mx(VALUES, SCALES)             blocks of 32 with E8M0 scales (uint8 or
                                   float8_e8m0fnu); element=e4m3, e5m2, e2m3,
                                   e3m2 or e2m1 (by default of packed uint8)
    nvfp4(VALUES, SCALES, GLOBAL)  e2m1 in blocks of 16 with e4m3 scales; GLOBAL
                                   multiplies, or divides (global=divide, which
                                   the name weight_global_scale implies)
    gptoss(BLOCKS, SCALES)         MXFP4 as gpt-oss stores it
  More options: layout=linear, 128x4, 8x4 or deepgemm (of the scales), nibbles=
  low or high (where the even element is) or split (of blocks of 32 as in GGML:
  elements 0 to 15 low, 16 to 31 high), axis=K (packed and scaled along it).
    ejk compare 'mx(q.npz:values, q.npz:scales)' w.npy --rtol 0.1
  'ejk quantize' writes such arrays. Reports print how each was decoded.

Rows by index
  rows(ARRAY, INDICES) is ARRAY[INDICES] along the first axis, with a slice
  after it or without: the tokens of a routing, an array in another order.
    ejk grouped-matmul 'rows(x.npy, r.h5:/token)' w.npy r.h5:/group_sizes

Element types
  bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64,
  and 8-bit floats: float8_e4m3fn, float8_e5m2, float8_e4m3fnuz,
  float8_e5m2fnuz, float8_e8m0fnu (powers of two, the scales of blocks).
  bfloat16 in .npy is that of ml_dtypes (descr '<V2'); in HDF5 it is a 16-bit
  float with an exponent of 8 bits, or two opaque bytes, as h5py stores it. Bit
  fields, which PyTables uses for bool, are unsigned integers. 'ejk convert'
  converts between types.
  8-bit floats are computed with as float32, in products and attention as
  bfloat16, which has all their numbers. .npy has no name for them: they are
  written as single bytes ('|V1'), with a warning, for
    numpy.load("x.npy").view(ml_dtypes.float8_e4m3fn)
    ejk convert x.npy -o x.h5 --view float8_e4m3fn
  The second also reads '<V1' and '<f1', which ml_dtypes writes. HDF5 has them
  as 8-bit floats with their exponent, mantissa and bias, but float8_e8m0fnu as
  uint8, which --view reads. safetensors files have all these types. Their types
  F4, F6 and C64, and complex types of a.pt, are listed by 'ejk info' and cannot
  be read; 'ejk convert --view uint8' takes the packed bytes of F4 and F6.

Writing
  One array goes to x.npy, x.npz:name, x.safetensors:name, x.h5:/path or -
  (stdout). Several go to out.h5, out.h5:/group, out.npz, out.safetensors or a
  folder out/ (one NAME.npy each); --field NAME picks one of them. Another
  suffix is an error. safetensors files have the bytes that Python's save_file
  writes, without metadata.
  An existing .npy, .npz or .safetensors file is replaced. An existing HDF5 file
  keeps its other objects; one of the same name is replaced only with
  --overwrite. Each run that adds to an HDF5 file copies the whole file.
  HDF5 files have the version, the command and its options as attributes.

Whole or not at all
  A file is written under a temporary name (.NAME.ejk-...) and then renamed:
  after an error or a signal the target is the old file or the new one. A new
  folder (-o out/) is created in the same way; in an existing one all files are
  replaced or none. A command's arrays that a run does not write are removed
  there, and with --overwrite in an HDF5 file. Runs of ejk that write to one
  HDF5 file wait for each other; concurrent changes by other programs are lost.
  Not covered are
    SIGKILL       temporary files may remain, and in an existing folder some
                  files may be new and some old; run the command again
    a crash of the machine, a power loss
                  for up to a minute a new file may be missing, empty, or zeros;
                  a replaced file may be the old one again, and on file systems
                  that do not store the new bytes before the new name (XFS;
                  ext4 with noauto_da_alloc) empty or partly zeros
  With --sync success is reported after files and folders are on disk. If a
  folder cannot be stored, the exit status is 4 and the new file is in place.
)";

constexpr std::string_view kMasks = R"(Masks: arrays and expressions

Query q may attend to key k where element (q, k) of a mask is True. Masks are
arrays (MASK) and rules (--mask EXPR), which are ANDed. Rules are computed block
by block, never stored.

)";

constexpr std::string_view kMoreOfMasks = R"(

  'causal & documents(cu.npy)' is causal attention within packed sequences.
  Arguments are given in order or by name: local(3, 0) is local(left=3,
  right=0). The sides of a window count neighbours of the query's own key:
  local(left=255, right=0) allows 256 keys. Both must be given; none means
  unbounded. A reference with special characters needs double quotes:
  file("a,b.npy").

What mask-info stores
  from(REF) is the mask that the arrays of a MaskInfo store, visited(REF) all
  pairs in the blocks that a kernel visits. REF is an HDF5 file or a group in
  one, an .npz or a folder. HDF5 files contain the settings; for others they are
  arguments, where the arrays do not contain them: from(a.npz, block=128x128,
  shape=8x4096x4096, walk=dkv, head_shards=2, q_seq_shards=4). Elements of a
  computable mask are stored only by 'ejk mask-info --no-computable'.
  from(REF) is also the custom mask of FlashInfer's batch prefill: custom_mask
  or packed_custom_mask, with qo_indptr, kv_indptr and, where it is,
  mask_indptr; requests attend to their own keys alone. It has no blocks for
  visited(REF).

Alignment
  Query 0 is aligned with key 0; with offset=K query i is aligned with key
  i + K. align=bottom-right aligns the last query with the last key (K = keys -
  queries), as in decoding with a KV cache; align=top-left confirms the default.
  In packed inputs positions count within each sequence.

Arrays
  bool, or integers of 0 and one other value, which is True. (Q, K) for all
  heads, (H, Q, K) for each; attention takes (B, Q, K), (B, 1, Q, K) and
  (B, H, Q, K) instead of the latter. 'mask.npy[0]' is one entry of a batch. A
  padding mask (batch, tokens) is --segment-ids of attention, as integers, or
  row by row 'segments(pad.npy[0])'. --mask-kind: keep (default): non-zero
  attends. drop: non-zero is masked. additive: a float bias, 0 attends, -1e4 and
  less masks.

Heads
  One --mask is for all heads; as many as there are heads are one for each.
  --shape HxQxK gives heads, queries and keys if no array does; QxK is one head.
)";

constexpr std::string_view kJson = R"(The report as JSON (--json)

--json prints the report as one JSON object on one line of stdout, without
arrays, or with -o - (an array on stdout) on stderr:
  ejk mask-info --mask causal --shape 64x64 --block 16x16 --json | jq .result

--html FILE writes the same report as one page for people, --picture FILE (of
mask, mask-info, sparsity and check mask-info) its block pictures alone.

'ejk help json COMMAND' lists the keys of a command's result. Scripts may rely
on the keys, the exit status and the layout of written files; the text of
reports may change.

How keys are written
  stats.read_s is a key in a section, arrays[].shape one in each row of a table.
  N stands for a number: picture_N is picture_0, picture_1. Units end the keys:
  _bytes, _s, _flop, _bytes_per_s, _flop_per_s.
)";

constexpr std::string_view kLayouts = R"(Layouts: the arrays that commands write

Blocks of masks have a state: 0 empty (all pairs masked), 1 partial, 2 full.
Packed sequences are concatenated; cu_seqlens is the first token of each. The
rows of a group share a matrix. (tokens,) is one axis, () a single number.

'ejk help layouts NAME' describes the arrays of a layout or a command, 'ejk help
arrays' where they are written.
)";

constexpr std::string_view kConventions = R"(Conventions: scores, rows and lse as other libraries have them

Defaults: scores are scaled, capped, then biased; out is 0 and lse -inf for a
query without a key; lse is the natural logarithm, heads before queries, and
counts a sink. --as LIBRARY selects the conventions of a library.
)";

constexpr std::string_view kPaged = R"(Paged caches: keys and values in pages

K and V are caches of pages, and a table lists the pages of each request:
  ejk attention q.npy kc.npy vc.npy --block-table t.npy --seq-lens lens.npy
'ejk check block-table' and 'ejk check slot-mapping' validate the tables.
)";

constexpr std::string_view kAgainst = R"(Verdicts: whether another program's result is right, and why not

--against compares a result with the float64 reference within error bounds, each
element within its own. The verdict is the first line:
  out is wrong in 97.3 %: the tile of 64 keys on the diagonal is left out

A wrong kernel, from 'differs' to its cause. Inputs whose scores differ enough:
  ejk generate attention-inputs --std 1 --dtype bfloat16 -o in.h5
  ejk attention in.h5:/query in.h5:/key in.h5:/value --mask causal \
    --against mine.npy --explain
of a kernel whose loop ends one tile early prints the verdict above. Weights may
be rounded to bfloat16, as --weights says. What no usual mistake explains can be
stated as a mask: --try 'causal & ~visited(info.h5)'.

A wrong kernel, step by step
  ejk compare mine.npy right.npy
    50 % of the elements differ, by up to 2.98 at (0, 0, 1, 31).
  ejk compare mine.npy right.npy --explain --axes batch,query,head,d
    Of 8 heads 1, 3, 4 and 6 are wholly different, for every query. Nothing
    that the two arrays tell accounts for it: no factor, no heads exchanged.
  ejk attention q.npy k.npy v.npy --mask causal --against mine.npy --explain
    With the inputs it does: query head h uses key/value head h mod G, not
    h / (H/G). There are 2 key heads, and 1, 3, 4 and 6 are the query heads
    for which h mod 2 and h / 4 are not the same.

The report as JSON (--json) has verdict and the section against: 'ejk help json
attention' lists their keys.
)";

constexpr std::string_view kTolerances = R"(Tolerances: when compared arrays are close

'ejk compare' compares element by element unless --metric is given. Results of
attention, products and layers of experts have error bounds of their own:
'ejk help against'. Which faults a tolerance lets pass: 'ejk audit'.

Would a library's own test pass, or is a kernel as good as another one?
  ejk compare mine.npy right.npy --tolerance torch.testing
  ejk compare mine.npy float64.npy --no-worse-than eager.npy

Is a kernel deterministic? Ten runs of the same work:
  ejk compare --runs run*.npy --axes batch,query,head,d
Where does a model's error begin, and which layer adds the most?
  ejk compare mine/ right/ --first --map 'model.layers.*=layers.*'
Is a quantised model that of its original?
  ejk compare model-nvfp4/ model-bf16/ --decode
Do two routers choose the same experts?
  ejk compare my_ids.npy right_scores.npy --routing --top-k 8
)";

constexpr std::string_view kMpi = R"(Ranks and machines (ejk-mpi)

ejk-mpi is ejk for the processes (ranks) of an MPI job, on one machine or many:
  mpirun -n 4 ejk-mpi attention q.npy k.npy v.npy --mask causal -o out.h5
Arguments, files, report and exit status are the same for any number of ranks.
It is built if MPI is found; 'sh .ci/install mpi' installs that.

What is divided
  mask-info              rows of blocks of the masks
  attention              entries, key/value heads, blocks of queries
  attention-grad         entries and key/value heads: more ranks than these
                         do not help. The gradient of a bias along its queries
  grouped-matmul         rows of the result, and columns of few rows
  transposed-...         groups, and rows of a group's result
  All other commands run on rank 0, as do --check and --against, for which rank
  0 needs as much memory as ejk. Work is divided by its estimated cost.

Ranks or threads
  Use one rank a memory domain (NUMA node), with threads for its cores, since
  threads share the inputs (mpirun --map-by numa:PE=16). Use more machines if
  inputs or results do not fit into one, or for speed: a rank reads and keeps
  only its part. --max-memory is for each rank; by default ranks share the
  memory of their machine.
  --dry-run on two ranks or more prints the work of each rank, and a model of
  the time on up to 1,024 ranks; --stats prints the time of each phase over the
  ranks. --threads, OMP_NUM_THREADS and SLURM_CPUS_PER_TASK set the threads of a
  rank; else ranks share the cores that they are bound to.

Files
  Inputs must be on a shared file system. .npy files, folders of them,
  .safetensors and HDF5 without compression are written by all ranks, other
  outputs (.npz, compressed HDF5, stdout) by rank 0. Standard input is read by
  rank 0, into the memory of every rank. A file appears only when it is
  complete, even if a rank or a machine is lost. SIGKILL of a rank may leave
  temporary files.

Errors
  An error is printed once, with its rank and host unless it is that of rank 0,
  and ends all ranks with the usual exit status (mpirun -q suppresses messages
  of mpirun). A rank that is killed ends the job. The exit status does not show
  that mpirun cannot write stdout (a full disk): use -o FILE for results.

Slurm
  share/ejk/slurm/ has scripts for one node, many nodes, and an array of
  independent commands, which needs no ranks.
)";

// The topics that describe options of several commands, by their headings.
struct OptionTopic {
  std::string_view name, text;
  std::vector<std::string> headings;
};

const std::vector<OptionTopic>& option_topics() {
  static const std::vector<OptionTopic> all{
      {"conventions", kConventions, {kScoresGroup, kConventionsGroup}},
      {"paged", kPaged, {kPagedGroup}},
      {"against", kAgainst, {kAgainstGroup}},
      {"tolerances", kTolerances, {kTolerancesGroup}},
      {"masks", "", {kMaskGroup}},
      {"options", "", {kSharedGroup}},
  };
  return all;
}

}  // namespace

const std::vector<std::string>& topics() {
  static const std::vector<std::string> names{"arrays",      "symptoms", "faults",  "masks",
                                              "conventions", "paged",    "against", "tolerances",
                                              "layouts",     "json",     "mpi",     "options"};
  return names;
}

std::string_view topic_of(std::string_view group) {
  for (const OptionTopic& topic : option_topics())
    for (const std::string& heading : topic.headings)
      if (heading == group) return topic.name;
  return "";
}

std::string topic_help(std::string_view topic) {
  if (topic == "arrays") return std::string(kArrays);
  if (topic == "symptoms") return symptoms_help();
  if (topic == "faults") return faults_help();
  if (topic == "masks")
    return std::string(kMasks) + kMaskHelp + std::string(kMoreOfMasks) + group_help(kMaskGroup);
  if (topic == "json") return std::string(kJson) + keys_help();
  if (topic == "mpi") return std::string(kMpi);
  if (topic == "options") return options_help();
  if (topic == "layouts") return std::string(kLayouts) + layouts_list();
  for (const OptionTopic& one : option_topics())
    if (one.name == topic) {
      std::string out(one.text);
      for (const std::string& heading : one.headings) out += group_help(heading);
      return out;
    }
  throw Error(Error::Kind::internal, std::string("no topic ").append(topic));
}

}  // namespace ejk::app
