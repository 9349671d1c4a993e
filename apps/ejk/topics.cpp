// The texts are laid out by hand; what is made from tables (options, arrays) is laid out by help.cpp.
//
// tests: tests/cli/program/topics.case
#include "topics.hpp"

#include <algorithm>

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
    -                 an .npy stream: stdin (for one input), or stdout (-o -)
  What an input file is, its first bytes say, whatever its suffix: a.nc:/x and
  a.mat:/x name datasets where these files are HDF5, also behind a user block.
  A pipe is taken by its name.
  An input may end in a basic slice of NumPy (integers, also negative ones,
  start:stop:step with a step of at least 1, and ...). Only that part is read.
  Shells need quotes around it:
    ejk info 'a.npy[0,:,128:256]' 'a.h5:/layer0/mask[..., ::2]'
  A dataset or member whose name ends in brackets is read with [...] behind it:
    ejk info 'a.h5:/x[1][...]'

Element types
  bool, int8 to int64, uint8 to uint64, float16, bfloat16, float32, float64.
  bfloat16 is what ml_dtypes writes to .npy (descr '<V2'); in HDF5 it is a
  16-bit float with an exponent of 8 bits, or two opaque bytes, which h5py makes
  of ml_dtypes' arrays. The bool of h5py is bool; bit fields, as PyTables writes
  for bool, are unsigned integers. Masks may be bool or integers of 0 and one
  other value, which is True. 'ejk convert' makes one type of another.

Writing
  One array goes to x.npy, x.npz:name, x.h5:/path or - (stdout). Several go to
  out.h5, out.h5:/group, out.npz or a folder out/ (one NAME.npy each); --field
  NAME picks one of them. An output whose suffix is no known container's is an
  error, unless it ends in /, is a folder already, or has no suffix.
  An .npy or .npz file that exists is replaced. An HDF5 file that exists keeps
  all its other objects; an object of the same name is replaced only with
  --overwrite. Each run that adds to an HDF5 file copies the whole file: write
  many results into a file in one run, or into files of their own.
  HDF5 files hold the version, the command and its options as attributes.

Whole or not at all
  A file is written beside its target under a temporary name (.NAME.ejk-...) and
  then renamed: after an error or a signal the target is the old file or the new
  one, never a part. A folder that is new (-o out/) is made in the same way,
  with all its files. In a folder that exists all files are replaced or none.
  Where a run makes several arrays, those of the command that it does not make
  are removed there, and with --overwrite in an HDF5 file. Runs of ejk that
  write to one HDF5 file wait for each other; what another program writes to it
  at that time is lost.
  Not covered are
    SIGKILL       of ejk, or of one rank of ejk-mpi: what has a temporary name
                  may remain, and in a folder that existed some files may be
                  new and some old; run the command again
    a crash of the machine, a power loss
                  the system stores what it was given later, within seconds
                  to a minute. Until then a file that was made may be
                  missing, or be there with no bytes, or with zeros for bytes;
                  a file that was replaced may be the old one again, and on
                  file systems that do not store the new bytes before the new
                  name (XFS; ext4 with noauto_da_alloc) empty or part zeros
  With --sync a run says success only when its files are on the disk, and then
  the folders that hold their names. It takes as long as the disk does. If a
  folder cannot be stored, the exit status is 4 and the new file is in place.
)";

constexpr std::string_view kMasks = R"(Masks: arrays and expressions

A mask says which keys each query may attend to: element (q, k) True attends.
It is given as an array (MASK), as one or more rules (--mask EXPR), or as both,
which are then ANDed. An expression is computed block by block, never stored.

)";

constexpr std::string_view kMoreOfMasks = R"(

  'causal & documents(cu.npy)' is causal attention within packed sequences. ~
  binds before &, & before |. Spaces do not matter. causal() is causal.
  Arguments are given in order or by name: local(3, 0) is local(left=3,
  right=0). A window counts the neighbours of the query, which it holds as well:
  local(left=255, right=0) lets each query see 256 keys, itself the last. Both
  sides must be given; none is no bound. local(256) is an error. A reference
  with special characters goes in double quotes: file("a,b.npy").

What mask-info stores
  from(REF) is the very mask that the arrays of a MaskInfo store, visited(REF)
  every pair in a block that they make a kernel visit. REF is an HDF5 file or a
  group in one, an .npz or a folder. They are walked as a kernel walks them,
  following data_next and mask_next. HDF5 files say what they are for; of others
  the expression does, where it matters: from(a.npz, block=128x128,
  shape=8x4096x4096, walk=dkv, head_shards=2, q_seq_shards=4). Of a computable
  mask, whose elements are left to the kernel, only the blocks are known:
  'ejk mask-info --no-computable' stores the elements as well.

Alignment
  Where queries and keys differ in number, query 0 is aligned with key 0, or
  offset=K moves it: query i stands at key i + K. align=bottom-right aligns the
  last query with the last key (K = keys - queries), as kernels do that decode
  with a cache of keys; align=top-left is the default, and says that it is
  meant. In packed inputs positions count within each sequence.

Arrays
  bool, or integers of which non-zero is True, and is one value: ids are not a
  mask. (Q, K) for all heads, (H, Q, K) for each; attention takes (B, Q, K),
  (B, 1, Q, K) and (B, H, Q, K) instead of the latter. Use a slice for one entry
  of a batch: 'mask.npy[0]'. A padding mask (batch, tokens) is not such a mask:
  attention takes it as --segment-ids, as integers, and 'segments(pad.npy[0])'
  is one row of it. --mask-kind says what elements mean. keep (default):
  non-zero attends. drop: non-zero is hidden. additive: a float bias, 0 attends,
  -1e4 and less hides.

Heads
  One --mask serves all heads; as many as there are heads, one each. --shape
  HxQxK gives heads, queries and keys where no array does; QxK is one head.
)";

constexpr std::string_view kJson = R"(The report as JSON (--json)

--json prints the report as one JSON object on one line. Without -o it alone
goes to stdout, and arrays are not printed:
  ejk mask-info --mask causal --shape 64x64 --block 16x16 --json | jq .result
With -o - (an array on stdout) the report goes to stderr.

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

constexpr std::string_view kLayouts = R"(Layouts: what the arrays mean that commands write

Blocks of masks have a state: 0 empty (no query sees a key), 1 partial, 2 full.
Sequences that are packed lie one after the other; cu_seqlens says where each
begins. Groups are runs of rows that share a matrix, as the tokens of an expert.
Names stand for lengths: (tokens,) is one axis. () is a single number.

'ejk help arrays' says where they are written, 'ejk help COMMAND' how.
)";

constexpr std::string_view kMpi = R"(Ranks and machines (ejk-mpi)

ejk-mpi is ejk for the processes (ranks) of an MPI job, on one machine or many:
  mpirun -n 4 ejk-mpi attention q.npy k.npy v.npy --mask causal -o out.h5
It takes the same words, and gives the same files to the byte, the same report
and the same exit status for any number of ranks. The build makes it where MPI
is found; 'sh .ci/install mpi' installs that.

What is divided
  mask-info              rows of blocks of the masks
  attention              entries, key/value heads, blocks of queries
  attention-grad         entries and key/value heads; where these are fewer
                         than ranks, queries and keys
  grouped-matmul         rows of the result, and columns of few rows
  transposed-...         groups, and rows of a group's result
  All other commands run on rank 0, while the others wait; so do --check and
  --against, for which rank 0 needs the memory that ejk needs. Work is divided
  by what it costs, before it begins.

Ranks or threads
  Within a machine threads are the better choice: they share the inputs, and
  each rank reads what it needs by itself. Take one rank a memory domain (NUMA
  node), with threads for its cores (mpirun --map-by numa:PE=16). Take more
  machines when the inputs or results of one are too large for its memory, or
  when it takes too long: a rank reads and holds only its part. --max-memory is
  for each rank; by default ranks share what their machine has.
  --dry-run on two ranks or more prints who reads, sends, writes and holds how
  much, and a model of the time on up to 1,024 ranks; --stats the time of each
  phase over the ranks. --threads, OMP_NUM_THREADS and SLURM_CPUS_PER_TASK set
  the threads of a rank; else ranks share the cores that they are bound to.

Files
  All ranks open the inputs, which lie where all can read them. .npy files,
  folders of them and HDF5 without compression are written by all ranks at
  once, each its own part; to other outputs (.npz, compressed HDF5, stdout)
  rank 0 writes, and the others send it what they hold. Standard input is read
  by rank 0, into the memory of every rank. A file appears when all of it is
  there, never before, also when a rank or a machine is lost. SIGKILL, of a
  single rank too, may leave files of temporary names ('ejk help arrays').

Errors
  An error is told once, with its rank and host where rank 0 has not seen it,
  and ends all ranks with the usual exit status (mpirun -q keeps mpirun from
  adding words of its own). A rank that is killed ends the job. Mpirun
  passes stdout on: where it cannot write it (a full disk, a closed pipe), the
  exit status does not say so. Use -o FILE for what matters.

Slurm
  share/ejk/slurm/ has scripts for one node, many nodes, and an array of
  independent commands, which needs no ranks.
)";

}  // namespace

const char* const kExitStatus =
    "0 done; 1 the check failed, or the arrays differ; 2 usage; 3 an input is unreadable or invalid; 4 an "
    "output cannot be written; 5 over the memory budget, or the system gives no thread, process, socket or library; 70 "
    "a bug in ejk";

const std::vector<std::string>& topics() {
  static const std::vector<std::string> names{"arrays", "masks", "layouts", "json", "mpi", "options"};
  return names;
}

std::span<const WrittenArrays> written_arrays() {
  static const std::vector<WrittenArrays> table{
      {"cu-seqlens",
       {{"cu_seqlens", "(sequences + 1,) int32, or --dtype",
         "begins with 0 and never decreases: sequence i is tokens cu_seqlens[i] to cu_seqlens[i + 1] - 1"}},
       R"(cu = np.load("cu_seqlens.npy")
first = packed[cu[0]:cu[1]]  # tokens of sequence 0)"},
      {"lens",
       {{"lens", "(sequences,) of the input's type, int32 of a mask and of ids", "tokens of each sequence"}},
       R"(assert lens.sum() == cu[-1])"},
      {"position-ids",
       {{"position_ids", "(tokens,) of cu_seqlens' type",
         "0, 1, 2, ... from the beginning of each sequence"}},
       R"(rotated = rope(q, np.load("position_ids.npy")))"},
      {"sequence-ids",
       {{"sequence_ids", "(tokens,) int32, or int64", "the index of each token's sequence, from 0"}},
       R"(ids = np.load("sequence_ids.npy")
same = ids[:, None] == ids[None, :]  # may attend)"},
      {"token-indices",
       {{"token_indices", "(tokens, 2) of cu_seqlens' type", "[sequence, position in it] of each token"}},
       R"(sequence, position = np.load("token_indices.npy").T)"},
      {"chunk-indices",
       {{"chunk_indices", "(chunks, 2) of cu_seqlens' type",
         "[sequence, chunk in it] of each chunk of --chunk-size tokens; a sequence's last may be shorter"}},
       R"(sequence, chunk = np.load("chunk_indices.npy")[program_id]
begin = cu[sequence] + chunk * chunk_size
end = min(begin + chunk_size, cu[sequence + 1]))"},
      {"chunk-offsets",
       {{"chunk_offsets", "(sequences + 1,) of cu_seqlens' type",
         "chunks before each sequence: its chunks are chunk_offsets[i] to chunk_offsets[i + 1] - 1"}},
       R"(chunks = np.diff(np.load("chunk_offsets.npy"))  # of each sequence)"},
      {"cdiv",
       {{"cdiv", "the shape and type of A", "A / B, rounded up"}},
       R"(assert (np.load("cdiv.npy") == -(-a // b)).all())"},
      {"reorder-sequence",
       {{"reorder_sequence", "the shape and type of X",
         "the axis in 2 N equal pieces; rank r of N gets pieces r and 2 N - 1 - r, next to each other"}},
       R"(ring = np.load("q_ring.npy")  # (batch, tokens, ...), N ranks
mine = np.split(ring, N, axis=1)[rank])"},
      {"pack",
       {{"packed", "(tokens, ...) of X's type", "the tokens of X, row after row, without padding"},
        {"cu_seqlens", "(batch + 1,) int32", "where each row's tokens begin in packed"},
        {"indices", "(tokens,) int64",
         "row * seq + column of each token, or its place in X; ejk unpack takes it"},
        {"max_seqlen", "() int32", "tokens of the longest row"}},
       R"(with h5py.File("packed.h5") as f:
    tokens = x.reshape(batch * seq, -1)[f["indices"][()]]  # as f["packed"])"},
      {"unpack",
       {{"unpack", "(batch, seq, ...) of PACKED's type", "tokens in their places, --fill everywhere else"}},
       R"(assert (np.load("hidden.npy")[mask] == packed).all())"},
      {"bin-pack",
       {{"row", "(pieces,) int64", "the row that each piece lies in"},
        {"offset", "(pieces,) int64", "where in the row it begins"},
        {"length", "(pieces,) int64", "its tokens"},
        {"sequence", "(pieces,) int64", "the sequence that it is of"},
        {"start", "(pieces,) int64", "where in the sequence it begins; 0 unless sequences are split"}},
       R"(with h5py.File("rows.h5") as f: p = {k: f[k][()] for k in f}
batch = np.zeros((p["row"].max() + 1, capacity), tokens[0].dtype)
for i, n in enumerate(p["length"]):
    row, at, begin = p["row"][i], p["offset"][i], p["start"][i]
    batch[row, at:at + n] = tokens[p["sequence"][i]][begin:begin + n])"},
      {"segment-ids",
       {{"q_segment_ids", "(Q,), (batch, Q) or (batch, heads, Q) int32",
         "equal rows of the mask have equal ids; -1 is padding, a row without a True"},
        {"kv_segment_ids", "the same with K", "the ids of columns, numbered apart; -1 is padding"}},
       R"(with h5py.File("ids.h5") as f:
    q, k = f["q_segment_ids"][()], f["kv_segment_ids"][()]
again = (q[:, None] == k[None, :]) & (q[:, None] > 0))"},
      {"segment-mask",
       {{"attention_mask", "(batch, Q, K) bool, or --dtype", "True where ids are equal and not padding"},
        {"q_mask", "(batch, Q), with --separate", "True where a query is not padding"},
        {"kv_mask", "(batch, K), with --separate", "True where a key is not padding"}},
       R"(mask = np.load("mask.npy")  # mask[b, q, k])"},
      {"mask-info",
       {{"data_next", "(rows, q blocks, kv blocks) int8, int16 or int32",
         "the key block (with --dkv: the query block of the shard) to load: that of this position where it "
         "is "
         "not empty, else of the next one in the kernel's walk. rows are heads, or head shards where each "
         "has one mask alone. Where all heads have one mask, empty blocks are left out and the last axis "
         "(--dkv: the one before) is shorter"},
        {"mask_next", "the shape of data_next",
         "the index in partial_mask_blocks of this or the next partial block"},
        {"block_mask", "the shape of data_next", "the state of this block: 0 empty, 1 partial, 2 full"},
        {"partial_mask_blocks", "(P, bq, bk) bool",
         "the distinct partial blocks; none where a kernel computes the mask (--no-computable). With --dkv "
         "(P, bk, bq); with --dynamic every block, (heads, q blocks, "
         "kv blocks, bq, bk)"},
        {"q_sequence", "(Q,) int32",
         "0, 1, 2, ...: for a kernel that computes a causal, local or chunked mask"},
        {"is_dynamic_mask", "() bool", "whether --dynamic was given"}},
       R"(with h5py.File("info.h5") as f: a = {name: f[name][()] for name in f}
for h, i, j in np.argwhere(a["block_mask"]):  # not the empty ones
    key_block = a["data_next"][h, i, j]       # that query block i reads
    if a["block_mask"][h, i, j] == 1:         # the pairs of it that attend
        allowed = a["partial_mask_blocks"][a["mask_next"][h, i, j]])"},
      {"mask",
       {{"mask", "(H, Q, K) or (Q, K) bool", "True where query q may attend to key k"}},
       R"(scores = np.where(np.load("mask.npy"), scores, -np.inf))"},
      {"group-metadata",
       {{"group_offsets", "(groups + 1,) int32", "the first row of each group, and the end of the last"},
        {"group_ids", "(tiles of M + groups - 1,) int32", "the group that each step of the kernel computes"},
        {"m_tile_ids", "the shape of group_ids; (0,) where M is 0", "the tile of --tm rows in which it does"},
        {"num_tiles", "() int32", "the steps; entries from there on mean nothing"}},
       R"(with h5py.File("groups.h5") as f: a = {name: f[name][()] for name in f}
for g, t in zip(a["group_ids"][:a["num_tiles"]], a["m_tile_ids"]):
    begin = max(t * tm, a["group_offsets"][g])
    end = min((t + 1) * tm, a["group_offsets"][g + 1])
    out[begin:end] = lhs[begin:end] @ rhs[g])"},
      {"grouped-matmul",
       {{"out", "(m, n) of --dtype", "row i is LHS[i] @ RHS[g] for its group g; 0 in rows of no group"}},
       R"(out = np.load("out.npy")
first = lhs[:sizes[0]] @ rhs[0]  # equals out[:sizes[0]] but for rounding)"},
      {"transposed-grouped-matmul",
       {{"out", "(groups, k, n) of --dtype",
         "LHS[:, rows] @ RHS[rows] over the rows of each group; 0 for a group without rows"}},
       R"(grad = np.load("out.npy")
first = lhs[:, :sizes[0]] @ rhs[:sizes[0]]  # grad[0] but for rounding)"},
      {"attention",
       {{"out", "the shape of Q with V's size, of --dtype",
         "softmax(scale q k) v; 0 for a query without a key"},
        {"lse", "(batch, heads, Q), packed (heads, tokens)",
         "ln of the sum of exponentials of each query's scores; -inf without a key. float32, or float64"}},
       R"(with h5py.File("attention.h5") as f: out, lse = f["out"][()], f["lse"][()]
weights = np.exp(scores - lse[..., None])  # out is weights @ v)"},
      {"attention-grad",
       {{"dq", "the shape of Q", "the gradient of queries"},
        {"dk", "the shape of K", "of keys, summed over the query heads that share them"},
        {"dv", "the shape of V", "of values, likewise"},
        {"dbias", "the shape of --bias", "of a bias, summed over the axes that it is broadcast over"}},
       R"(with h5py.File("gradients.h5") as f: dq = f["dq"][()])"},
      {"convert",
       {{"convert", "the shape of the input", "the elements as --dtype; arrays of a file keep their names"}},
       R"(with h5py.File("weights.h5") as f: names = list(f))"},
      {"generate",
       {{"query", "(batch, seq, heads, head_dim) of --dtype",
         "normal numbers times --std, 0.02 by default, as JAX draws them"},
        {"key", "the same", "likewise"},
        {"value", "the same", "likewise"},
        {"mask", "(batch, seq) bool", "True for tokens, False for padding (generate masks)"},
        {"group_sizes", "(groups,) int32", "rows of each group (generate group-sizes)"},
        {"lens", "(count,) int32", "lengths of sequences (generate lens)"}},
       R"(with h5py.File("qkv.h5") as f: q = f["query"][()]  # attention-inputs
mask = np.load("mask.npy")  # masks, and so on)"},
      {"chunk",
       {{"chunk", "X's, with the axis (n,) become (ceil(n / N), N)", "the chunks, the last one filled up"}},
       R"(chunks = np.load("chunks.npy")  # chunks[:, i] is chunk i, for --axis 1)"},
      {"unchunk",
       {{"unchunk", "X's, with two axes joined to --length", "the chunks one after the other"}},
       R"(hidden = np.load("hidden.npy"))"},
      {"log-sum-exp",
       {{"log_sum_exp", "X's without the axis, or ()", "ln of the sum of exp(x); -inf of nothing"}},
       R"(p = np.exp(x - np.load("lse.npy")[..., None])  # for --axis -1)"},
      {"safe-divide",
       {{"safe_divide", "the broadcast shape of A and B", "A / max(B, M)"}},
       R"(means = np.load("means.npy"))"},
  };
  return table;
}

const WrittenArrays* written_by(std::string_view command) {
  const auto all = written_arrays();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const WrittenArrays& w) { return w.command == command; });
  return found == all.end() ? nullptr : &*found;
}

std::string topic_help(std::string_view topic) {
  if (topic == "arrays") return std::string(kArrays);
  if (topic == "masks") return std::string(kMasks) + kMaskHelp + std::string(kMoreOfMasks);
  if (topic == "json") return std::string(kJson) + keys_help();
  if (topic == "mpi") return std::string(kMpi);
  if (topic == "options") return options_help();
  std::string out(kLayouts);
  for (const WrittenArrays& written : written_arrays()) out += "\n" + arrays_help(written);
  return out;
}

}  // namespace ejk::app
