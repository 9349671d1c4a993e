// Interpreter of the pickles in files of torch.save, which runs no code of theirs: a stack machine. Values
// are nodes of one vector; tensors are collected from the value on top of the stack, with limits on depth, on
// the number of paths and on their length, since lists may be shared or contain themselves.
// tests: tests/io/test_torch_file.cpp
#include "io/pickle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "core/require.hpp"
#include "ejk/text.hpp"

namespace ejk::io {

namespace {

constexpr std::array<TorchType, 22> kTorchTypes{{
    {"bool", "BoolStorage", 1, DType::boolean},
    {"int8", "CharStorage", 1, DType::int8},
    {"int16", "ShortStorage", 2, DType::int16},
    {"int32", "IntStorage", 4, DType::int32},
    {"int64", "LongStorage", 8, DType::int64},
    {"uint8", "ByteStorage", 1, DType::uint8},
    {"uint16", "", 2, DType::uint16},
    {"uint32", "", 4, DType::uint32},
    {"uint64", "", 8, DType::uint64},
    {"float8_e4m3fn", "", 1, DType::float8_e4m3fn},
    {"float8_e5m2", "", 1, DType::float8_e5m2},
    {"float8_e4m3fnuz", "", 1, DType::float8_e4m3fnuz},
    {"float8_e5m2fnuz", "", 1, DType::float8_e5m2fnuz},
    {"float8_e8m0fnu", "", 1, DType::float8_e8m0fnu},
    {"float16", "HalfStorage", 2, DType::float16},
    {"bfloat16", "BFloat16Storage", 2, DType::bfloat16},
    {"float32", "FloatStorage", 4, DType::float32},
    {"float64", "DoubleStorage", 8, DType::float64},
    {"float4_e2m1fn_x2", "", 1, std::nullopt, true},
    {"complex32", "", 4},
    {"complex64", "ComplexFloatStorage", 8},
    {"complex128", "ComplexDoubleStorage", 16},
}};

using Index = std::uint32_t;

struct Node {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    text,
    other,  // what no tensor needs: a float, bytes, a set
    tuple,
    list,
    dict,      // items: keys and values in turn
    function,  // number: a Function
    type,      // number: an index of kTorchTypes; of the element type or of its storages
    storage,   // text: its key; items: its type, or none if it is untyped
    tensor,    // number: an index of tensors
  };
  Kind kind = Kind::none;
  std::int64_t number = 0;
  std::string_view text = {};
  std::vector<Index> items = {};
};
using NodeKind = Node::Kind;

enum class Function : std::uint8_t {
  rebuild_tensor,
  rebuild_tensor_v2,
  rebuild_tensor_v3,
  rebuild_parameter,
  ordered_dict,
  size,
  untyped_storage,
};
struct KnownFunction {
  std::string_view module, name;
  Function function;
};
constexpr std::array<KnownFunction, 8> kFunctions{{
    {"torch._utils", "_rebuild_tensor", Function::rebuild_tensor},
    {"torch._utils", "_rebuild_tensor_v2", Function::rebuild_tensor_v2},
    {"torch._utils", "_rebuild_tensor_v3", Function::rebuild_tensor_v3},
    {"torch._utils", "_rebuild_parameter", Function::rebuild_parameter},
    {"torch._utils", "_rebuild_parameter_with_state", Function::rebuild_parameter},
    {"collections", "OrderedDict", Function::ordered_dict},
    {"torch", "Size", Function::size},
    {"torch.storage", "UntypedStorage", Function::untyped_storage},
}};

class Unpickler {
 public:
  explicit Unpickler(std::string_view pickle) : pickle_(pickle) { nodes_.resize(kFirstNode); }

  std::vector<NamedTensor> run() {
    nodes_[kTrue].kind = nodes_[kFalse].kind = NodeKind::boolean;
    nodes_[kEmptyTuple].kind = NodeKind::tuple;
    nodes_[kOther].kind = NodeKind::other;
    while (step()) {
    }
    if (stack_.size() != 1 || !marks_.empty()) fail("it does not end with one value");
    // A path takes at least a byte of the pickle, but for lists that are in several others.
    constexpr std::size_t kPerByte = 4;
    visits_left_ = kPerByte * pickle_.size() + kPerByte;
    name_bytes_left_ = 16 * visits_left_;
    std::string path;
    collect(stack_[0], path, true, 0);
    std::unordered_set<std::string_view> paths;
    for (const NamedTensor& tensor : found_)
      if (!paths.insert(tensor.path).second)
        throw core::invalid("two tensors have the path '{}'", printable(tensor.path));
    return std::move(found_);
  }

 private:
  // Immutable values that take one byte of a pickle are one node each.
  static constexpr Index kNone = 0, kTrue = 1, kFalse = 2, kEmptyTuple = 3, kOther = 4, kFirstNode = 5;
  static constexpr int kDeepest = 100;
  static constexpr std::size_t kMostAxes = 64;  // torch's limit

  [[noreturn]] void fail(std::string_view why) const {
    throw core::invalid("the pickle is damaged at byte {}: {}", opcode_at_, why);
  }

  // --- the bytes

  std::string_view take(std::uint64_t n) {
    if (n > pickle_.size() - at_) fail("it ends within a value");
    const std::string_view bytes = pickle_.substr(at_, static_cast<std::size_t>(n));
    at_ += static_cast<std::size_t>(n);
    return bytes;
  }
  std::uint64_t number(std::size_t width) {
    const std::string_view bytes = take(width);
    std::uint64_t value = 0;
    for (std::size_t i = width; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
  }
  std::string_view line() {
    const std::size_t end = pickle_.find('\n', at_);
    if (end == std::string_view::npos) fail("it ends within a name");
    const std::string_view text = pickle_.substr(at_, end - at_);
    at_ = end + 1;
    return text;
  }

  // --- the stack

  Index add(Node node) {
    nodes_.push_back(std::move(node));
    return static_cast<Index>(nodes_.size() - 1);
  }
  void push(Index value) { stack_.push_back(value); }
  void push_new(NodeKind kind, std::int64_t value = 0, std::string_view text = {}) {
    push(add({kind, value, text}));
  }
  // What was pushed since the last mark.
  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Index pop() {
    if (stack_.size() <= floor()) fail("a value is missing");
    const Index top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Node& top(NodeKind kind, std::string_view what) {
    if (stack_.size() <= floor() || nodes_[stack_.back()].kind != kind)
      fail(fmt::format("there is no {}", what));
    return nodes_[stack_.back()];
  }
  // All values above the last mark, which is removed.
  std::vector<Index> pop_marked() {
    if (marks_.empty()) fail("a mark is missing");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Index> values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }
  void push_tuple(std::vector<Index> items) {
    if (items.empty()) return push(kEmptyTuple);
    push(add({NodeKind::tuple, 0, {}, std::move(items)}));
  }
  void push_last_as_tuple(std::size_t n) {
    std::vector<Index> items(n);
    for (std::size_t i = n; i-- > 0;) items[i] = pop();
    push_tuple(std::move(items));
  }
  void append(const std::vector<Index>& values, NodeKind kind, std::string_view what) {
    Node& to = top(kind, what);
    if (kind == NodeKind::dict && values.size() % 2 != 0) fail("a key has no value");
    to.items.insert(to.items.end(), values.begin(), values.end());
  }

  // --- opcodes

  // False at the end of the pickle.
  bool step() {
    opcode_at_ = at_;
    const char opcode = take(1)[0];
    switch (static_cast<unsigned char>(opcode)) {
      case '.':
        return false;
      case 0x80: {  // the protocol
        constexpr std::uint64_t kNewest = 5;
        if (const std::uint64_t version = number(1); version > kNewest)
          throw core::invalid("the pickle has protocol {}, and {} is the newest known", version, kNewest);
        return true;
      }
      case 0x95:  // the length of a frame, for readers of streams
        take(8);
        return true;
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':
        pop();
        return true;
      case '1':
        pop_marked();
        return true;
      case '2': {
        const Index value = pop();
        push(value), push(value);
        return true;
      }
      case 'N':
        return push(kNone), true;
      case 0x88:
        return push(kTrue), true;
      case 0x89:
        return push(kFalse), true;
      case 'K':
        return push_new(NodeKind::integer, static_cast<std::int64_t>(number(1))), true;
      case 'M':
        return push_new(NodeKind::integer, static_cast<std::int64_t>(number(2))), true;
      case 'J':
        return push_new(NodeKind::integer, static_cast<std::int32_t>(number(4))), true;
      case 0x8a:
        return push_long(number(1)), true;
      case 0x8b:
        return push_long(number(4)), true;
      case 'G':
        take(8);
        return push(kOther), true;
      case 'X':
        return push_new(NodeKind::text, 0, take(number(4))), true;
      case 0x8c:
        return push_new(NodeKind::text, 0, take(number(1))), true;
      case 0x8d:
        return push_new(NodeKind::text, 0, take(number(8))), true;
      case 'U':  // strings of Python 2
        return push_new(NodeKind::text, 0, take(number(1))), true;
      case 'T':
        return push_new(NodeKind::text, 0, take(number(4))), true;
      case 'B':
        take(number(4));
        return push(kOther), true;
      case 'C':
        take(number(1));
        return push(kOther), true;
      case 0x8e:
      case 0x96:
        take(number(8));
        return push(kOther), true;
      case ')':
        return push(kEmptyTuple), true;
      case 0x85:
      case 0x86:
      case 0x87:
        return push_last_as_tuple(static_cast<unsigned char>(opcode) - 0x84U), true;
      case 't':
        return push_tuple(pop_marked()), true;
      case ']':
        return push_new(NodeKind::list), true;
      case 'l': {
        std::vector<Index> items = pop_marked();
        return push(add({NodeKind::list, 0, {}, std::move(items)})), true;
      }
      case 'a': {
        const Index value = pop();
        return append({value}, NodeKind::list, "list to append to"), true;
      }
      case 'e':
        return append(pop_marked(), NodeKind::list, "list to append to"), true;
      case '}':
        return push_new(NodeKind::dict), true;
      case 'd': {
        push(add({NodeKind::dict}));
        const Index dict = pop();
        const std::vector<Index> items = pop_marked();
        push(dict);
        return append(items, NodeKind::dict, "dict"), true;
      }
      case 's': {
        const Index value = pop(), key = pop();
        return append({key, value}, NodeKind::dict, "dict to put an item in"), true;
      }
      case 'u':
        return append(pop_marked(), NodeKind::dict, "dict to put items in"), true;
      case 0x8f:  // an empty set
        return push(kOther), true;
      case 0x90:  // items of a set
        pop_marked();
        top(NodeKind::other, "set to add to");
        return true;
      case 0x91:  // a frozen set
        pop_marked();
        return push(kOther), true;
      case 'q':
        return remember(number(1)), true;
      case 'r':
        return remember(number(4)), true;
      case 0x94:
        return remember(memo_.size()), true;
      case 'h':
        return recall(number(1)), true;
      case 'j':
        return recall(number(4)), true;
      case 'c': {
        const std::string_view module = line();
        return push_global(module, line()), true;
      }
      case 0x93: {
        const Index name = pop(), module = pop();
        if (nodes_[name].kind != NodeKind::text || nodes_[module].kind != NodeKind::text)
          fail("the name of a function is no text");
        return push_global(nodes_[module].text, nodes_[name].text), true;
      }
      case 'Q':
        return push_storage(pop()), true;
      case 'R': {
        const Index arguments = pop(), function = pop();
        return call(function, arguments), true;
      }
      case 'b':  // attributes of a dict, as modules have them; tensors are not among them
        pop();
        top(NodeKind::dict, "dict to set attributes of");
        return true;
      default:
        throw core::invalid("the pickle has the opcode 0x{:02x} at byte {}, which no tensor needs",
                            static_cast<unsigned char>(opcode), opcode_at_);
    }
  }

  // Two's complement of any width. What exceeds 64 bits is no number of a tensor.
  void push_long(std::uint64_t width) {
    const std::string_view bytes = take(width);
    if (bytes.size() > sizeof(std::int64_t)) return push(kOther);
    std::uint64_t value = !bytes.empty() && (bytes.back() & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    push_new(NodeKind::integer, static_cast<std::int64_t>(value));
  }

  void remember(std::uint64_t slot) {
    const Index value = pop();
    memo_[slot] = value;
    push(value);
  }
  void recall(std::uint64_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) fail(fmt::format("nothing was remembered as {}", slot));
    push(found->second);
  }

  void push_global(std::string_view module, std::string_view name) {
    for (const KnownFunction& known : kFunctions)
      if (known.module == module && known.name == name)
        return push_new(NodeKind::function, static_cast<std::int64_t>(known.function));
    for (std::size_t i = 0; module == "torch" && i < kTorchTypes.size(); ++i)
      if (name == kTorchTypes[i].name || (name == kTorchTypes[i].storage && !name.empty()))
        return push_new(NodeKind::type, static_cast<std::int64_t>(i));
    throw Error(Error::Kind::input, fmt::format("the pickle uses {}.{}, which no tensor needs",
                                                printable(module, 80), printable(name, 80)))
        .hint("torch.save(model.state_dict(), FILE) saves tensors alone");
  }

  // ("storage", type, key, device, elements)
  void push_storage(Index id) {
    const std::vector<Index>& parts = nodes_[id].items;
    if (nodes_[id].kind != NodeKind::tuple || parts.size() < 5 || !is_text(parts[0], "storage") ||
        nodes_[parts[2]].kind != NodeKind::text)
      fail("a storage has no type and key");
    Node storage{NodeKind::storage, 0, nodes_[parts[2]].text, {}};
    if (nodes_[parts[1]].kind == NodeKind::type)
      storage.items = {parts[1]};
    else if (!is_function(parts[1], Function::untyped_storage))
      fail("a storage has no type and key");
    push(add(std::move(storage)));
  }

  bool is_text(Index value, std::string_view text) const {
    return nodes_[value].kind == NodeKind::text && nodes_[value].text == text;
  }
  bool is_function(Index value, Function function) const {
    return nodes_[value].kind == NodeKind::function &&
           nodes_[value].number == static_cast<std::int64_t>(function);
  }

  void call(Index function, Index arguments) {
    if (nodes_[function].kind != NodeKind::function || nodes_[arguments].kind != NodeKind::tuple)
      fail("what is called is no function with arguments");
    const std::vector<Index>& given = nodes_[arguments].items;
    switch (static_cast<Function>(nodes_[function].number)) {
      case Function::rebuild_tensor:
      case Function::rebuild_tensor_v2:
        return push_tensor(given, nullptr);
      case Function::rebuild_tensor_v3: {
        constexpr std::size_t kType = 6;
        if (given.size() <= kType || nodes_[given[kType]].kind != NodeKind::type)
          fail("a tensor has no dtype");
        return push_tensor(given, &kTorchTypes[static_cast<std::size_t>(nodes_[given[kType]].number)]);
      }
      case Function::rebuild_parameter:
        if (given.empty() || nodes_[given[0]].kind != NodeKind::tensor) fail("a parameter has no tensor");
        return push(given[0]);
      case Function::ordered_dict:
        if (!given.empty()) fail("an OrderedDict is made of arguments");
        return push_new(NodeKind::dict);
      case Function::size:
        if (given.size() != 1) fail("a size has no lengths");
        return push(given[0]);
      case Function::untyped_storage:
        break;
    }
    fail("a class is called that no tensor is rebuilt by");
  }

  // (storage, offset, shape, strides, ...)
  void push_tensor(const std::vector<Index>& given, const TorchType* type) {
    if (given.size() < 4 || nodes_[given[0]].kind != NodeKind::storage) fail("a tensor has no storage");
    const Node& storage = nodes_[given[0]];
    auto tensor = std::make_shared<PickledTensor>();
    tensor->type = type;
    if (type == nullptr) {
      if (storage.items.empty()) fail("a tensor has no dtype");
      tensor->type = &kTorchTypes[static_cast<std::size_t>(nodes_[storage.items[0]].number)];
    }
    tensor->storage = storage.text;
    if (nodes_[given[1]].kind != NodeKind::integer) fail("a tensor's offset is no number");
    tensor->offset = nodes_[given[1]].number;
    tensor->shape = numbers_of(given[2]);
    tensor->strides = numbers_of(given[3]);
    if (tensor->shape.size() != tensor->strides.size())
      fail(fmt::format("a tensor has {} axes and {} strides", tensor->shape.size(), tensor->strides.size()));
    (void)element_count(tensor->shape);  // an Error where it exceeds 64 bits
    tensors_.push_back(std::move(tensor));
    push_new(NodeKind::tensor, std::ssize(tensors_) - 1);
  }

  Shape numbers_of(Index value) const {
    const Node& list = nodes_[value];
    if (list.kind != NodeKind::tuple && list.kind != NodeKind::list)
      fail("a tensor's shape or strides are no tuple");
    if (list.items.size() > kMostAxes) fail(fmt::format("a tensor has more than {} axes", kMostAxes));
    Shape numbers;
    for (const Index item : list.items) {
      if (nodes_[item].kind != NodeKind::integer || nodes_[item].number < 0)
        fail("a tensor's shape or strides have an entry that is no number from 0 on");
      numbers.push_back(nodes_[item].number);
    }
    return numbers;
  }

  // --- the paths

  void charge(std::size_t name_bytes) {
    if (name_bytes > name_bytes_left_) throw core::invalid("the paths of tensors are too long");
    name_bytes_left_ -= name_bytes;
  }

  // `is_named`: no key on the path is of another type than text and integers.
  void collect(Index value, std::string& path, bool is_named, int depth) {
    if (visits_left_-- == 0)
      throw core::invalid("lists and dicts of the pickle contain each other too often");
    const Node& node = nodes_[value];
    if (node.kind == NodeKind::tensor) {
      if (!is_named) throw core::invalid("a tensor is under a key that is neither a text nor an integer");
      charge(path.size());
      found_.push_back({path, tensors_[static_cast<std::size_t>(node.number)]});
      return;
    }
    const bool is_dict = node.kind == NodeKind::dict;
    if (!is_dict && node.kind != NodeKind::list && node.kind != NodeKind::tuple) return;
    if (depth == kDeepest)
      throw core::invalid("the pickle has more than {} lists and dicts inside one another", kDeepest);
    const std::size_t length = path.size();
    for (std::size_t i = 0; i < node.items.size(); i += is_dict ? 2 : 1) {
      bool has_name = true;
      if (!is_dict) {
        path += fmt::format("[{}]", i);
      } else if (const Node& key = nodes_[node.items[i]]; key.kind == NodeKind::text) {
        if (length > 0) path += '.';
        charge(key.text.size());
        path += key.text;
      } else if (key.kind == NodeKind::integer) {
        path += fmt::format("[{}]", key.number);
      } else {
        has_name = false;
      }
      collect(node.items[i + (is_dict ? 1 : 0)], path, is_named && has_name, depth + 1);
      path.resize(length);
    }
  }

  std::string_view pickle_;
  std::size_t at_ = 0, opcode_at_ = 0;
  std::vector<Node> nodes_;
  std::vector<Index> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Index> memo_;
  std::vector<std::shared_ptr<const PickledTensor>> tensors_;
  std::vector<NamedTensor> found_;
  std::size_t visits_left_ = 0, name_bytes_left_ = 0;
};

}  // namespace

std::vector<NamedTensor> tensors_in_pickle(std::string_view pickle) { return Unpickler(pickle).run(); }

}  // namespace ejk::io
