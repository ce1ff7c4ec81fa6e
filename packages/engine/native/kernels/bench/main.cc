// kernels_bench: rates of the kernels beside the limits of the machine, read in the same run. Prints JSON.
//   --rounds N (default 5)        every point is measured once a round; the best counts
//   --seconds S (default 0.06)    per measurement
//   --clock wall|cpu (wall)       cpu: each thread's own time on a core, for a machine that others use too
//   --tokens N (default 128)      points with at most so many tokens
//   --threads N (default 2)       1 and N threads are measured
//   --only TEXT                   points whose kernel contains TEXT
//   --table NAME                  that table alone
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "bench.h"
#include "kernels.h"

namespace k3::bench {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kWeights = 512 * kMiB;  // far beyond the caches; threads take their share of it
constexpr size_t kMostTokens = 128;
constexpr size_t kMostColumns = 12288;

struct Point {
  std::string kernel;
  std::string table;
  std::string place;  // "memory" or "L2": where the weights come from
  size_t threads;
  size_t tokens;
  double bytes_per_unit;  // of weights or state moved; a unit is a weight, or an element
  double fma_per_unit;    // 0: not of interest
  Piece piece;            // returns units
  double best = 0;
  // From memory: each round's rate over that of reading, measured just before and just after. What a host
  // gives its guests changes within a minute, so that the best of one is no limit for the best of the other.
  std::vector<double> read_shares;
};

struct Data {
  uint8_t* weights;
  uint8_t* scales;
  float* x;                    // [kMostTokens][kMostColumns], values in (-1, 1)
  std::vector<float*> y;       // per thread
  std::vector<float*> states;  // per thread, 64 MiB
};

// What thread t of n owns of the weights, in steps of `step` bytes; `small` takes one step only, again and
// again.
struct Walk {
  size_t first, steps;
  Walk(size_t thread, size_t threads, size_t step, bool small) {
    const size_t share = kWeights / threads / step;
    first = thread * share;
    steps = small ? 1 : share;
  }
  size_t at(size_t number) const { return first + number % steps; }
};

void add_products(std::vector<Point>& points, const Kernels& k, Data& data, size_t threads, size_t tokens,
                  bool small) {
  const std::string place = small ? "L2" : "memory";
  const size_t cols = 7168, rows = small ? 32 : 73;
  const size_t bf16_block = rows * cols * 2;
  points.push_back({"matmul_bf16", k.name, place, threads, tokens, 2, static_cast<double>(tokens),
                    [&k, &data, threads, tokens, small, rows, bf16_block](size_t t, size_t number) {
                      const auto* w =
                          data.weights + Walk(t, threads, bf16_block, small).at(number) * bf16_block;
                      k.matmul_bf16(reinterpret_cast<const uint16_t*>(w), rows, cols, data.x, cols, tokens,
                                    data.y[t], rows);
                      return static_cast<double>(rows * cols);
                    }});
  const size_t wide = 3584, experts_rows = small ? 256 : 512;
  const size_t fp4_block = experts_rows * wide / 2;
  points.push_back({"matmul_mxfp4", k.name, place, threads, tokens, 17.0 / 32, static_cast<double>(tokens),
                    [&k, &data, threads, tokens, small, experts_rows, fp4_block](size_t t, size_t number) {
                      const size_t block = Walk(t, threads, fp4_block, small).at(number);
                      k.matmul_mxfp4(data.weights + block * fp4_block, data.scales + block * (fp4_block / 16),
                                     experts_rows, wide, data.x, wide, tokens, data.y[t], experts_rows);
                      return static_cast<double>(experts_rows * wide);
                    }});
  if (small && tokens == 1) {  // the widest and the narrowest matrices of the model
    const size_t narrow_rows = 2048;
    points.push_back({"matmul_bf16 128 columns", k.name, place, threads, 1, 2, 1,
                      [&k, &data, narrow_rows](size_t t, size_t) {
                        const auto* w = reinterpret_cast<const uint16_t*>(data.weights + t * kMiB);
                        k.matmul_bf16(w, narrow_rows, 128, data.x, 128, 1, data.y[t], narrow_rows);
                        return static_cast<double>(narrow_rows * 128);
                      }});
    points.push_back(
        {"matmul_bf16 12288 columns", k.name, place, threads, 1, 2, 1, [&k, &data](size_t t, size_t) {
           const auto* w = reinterpret_cast<const uint16_t*>(data.weights + t * kMiB);
           k.matmul_bf16(w, 20, 12288, data.x, 12288, 1, data.y[t], 20);
           return static_cast<double>(20 * 12288);
         }});
    points.push_back(
        {"accumulate_rows_bf16 128 x 512", k.name, place, threads, 1, 2, 1, [&k, &data](size_t t, size_t) {
           const auto* w = reinterpret_cast<const uint16_t*>(data.weights + t * kMiB);
           for (int i = 0; i < 16; i++) k.accumulate_rows_bf16(w, 128, 512, data.x, data.y[t]);
           return 16 * 128.0 * 512;
         }});
  }
  if (!small && tokens == 1) {
    const size_t long_block = 43 * 12288 * 2;
    points.push_back(
        {"matmul_bf16 12288 columns", k.name, place, threads, 1, 2, 1,
         [&k, &data, threads, long_block](size_t t, size_t number) {
           const auto* w = data.weights + Walk(t, threads, long_block, false).at(number) * long_block;
           k.matmul_bf16(reinterpret_cast<const uint16_t*>(w), 43, 12288, data.x, 12288, 1, data.y[t], 43);
           return 43.0 * 12288;
         }});
    const size_t block = 36 * cols * 4;
    points.push_back(
        {"matmul_f32", k.name, place, threads, 1, 4, 1, [&k, &data, threads, block](size_t t, size_t number) {
           const auto* w = data.weights + Walk(t, threads, block, false).at(number) * block;
           k.matmul_f32(reinterpret_cast<const float*>(w), 36, cols, data.x, cols, 1, data.y[t], 36);
           return static_cast<double>(36 * cols);
         }});
  }
}

void add_layers(std::vector<Point>& points, const Kernels& k, Data& data, size_t threads) {
  const auto of_elements = [&](const char* name, double bytes, auto call) {
    points.push_back({name, k.name, "L2", threads, 1, bytes, 0, [call](size_t t, size_t) {
                        for (int i = 0; i < 64; i++) call(t);  // one alone is shorter than reading the clock
                        return 64 * 3072.0;
                      }});
  };
  // A head's state is read and written: 8 bytes an element, 2 fma.
  points.push_back({"kda_step", k.name, "memory", threads, 1, 8, 3, [&k, &data](size_t t, size_t number) {
                      float* state = data.states[t] + number % 1024 * (128 * 128);
                      k.kda_step(state, 128, data.x, data.x + 128, data.x + 256, data.x + 384, 0.5f,
                                 data.y[t]);
                      return 128.0 * 128;
                    }});
  points.push_back({"short_conv", k.name, "L2", threads, 1, 44, 0, [&k, &data](size_t t, size_t) {
                      k.short_conv(data.x, data.x + 12288, 12288, 4, data.states[t], data.y[t]);
                      return 12288.0;
                    }});
  of_elements("exp", 8, [&k, &data](size_t t) { k.exp(data.x, 3072, data.y[t]); });
  of_elements("sigmoid", 8, [&k, &data](size_t t) { k.sigmoid(data.x, 3072, data.y[t]); });
  of_elements("situ_glu", 12,
              [&k, &data](size_t t) { k.situ_glu(data.x, data.x + 3072, 4, 25, 3072, data.y[t]); });
  of_elements("rms_norm", 12,
              [&k, &data](size_t t) { k.rms_norm(data.x, data.x + 3072, 1e-5f, 3072, data.y[t]); });
}

void add_bounds(std::vector<Point>& points, Data& data, size_t threads) {
  [[maybe_unused]] static volatile uint64_t sink;
  for (const bool small : {false, true}) {
    points.push_back({"read", "", small ? "L2" : "memory", threads, 1, 1, 0,
                      [&data, threads, small](size_t t, size_t number) {
                        const size_t step = small ? kMiB / 2 : kMiB;
                        const Walk walk(t, threads, step, small);
                        sink = read_bytes(data.weights + walk.at(number) * step, step);
                        return static_cast<double>(step);
                      }});
  }
#ifdef __x86_64__  // written without vector instructions it would be no limit
  for (const char* name : {"avx2", "avx512"}) {
    if (!kernels_for(name)) continue;
    const bool wide = !std::strcmp(name, "avx512");
    points.push_back({"fma", name, "registers", threads, 1, 0, 1, [wide](size_t, size_t) {
                        const size_t count = 1920000;
                        sink = static_cast<uint64_t>(multiply_add(wide, count));
                        return static_cast<double>(count);
                      }});
  }
#endif
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One round of a point; `read` is the limit with as many threads, or null.
void measure(Point& point, const Point* read, double seconds, bool own_time) {
  const auto reading = [&] { return rate(read->threads, seconds / 2, own_time, read->piece); };
  const double before = read ? reading() : 0;
  const double units = rate(point.threads, seconds, own_time, point.piece);
  point.best = std::max(point.best, units);
  if (read) point.read_shares.push_back(units * point.bytes_per_unit * 2 / (before + reading()));
}

void print(const std::vector<Point>& points, size_t rounds, double seconds, bool own_time) {
  std::printf("{\"rounds\":%zu,\"seconds\":%g,\"clock\":\"%s\",\"points\":[\n", rounds, seconds,
              own_time ? "cpu" : "wall");
  for (size_t i = 0; i < points.size(); i++) {
    const Point& p = points[i];
    std::printf("{\"kernel\":\"%s\",\"table\":\"%s\",\"place\":\"%s\",\"threads\":%zu,\"tokens\":%zu,",
                p.kernel.c_str(), p.table.c_str(), p.place.c_str(), p.threads, p.tokens);
    if (!p.read_shares.empty()) std::printf("\"read_share\":%.3f,", median(p.read_shares));
    std::printf("\"bytes_per_second\":%.4e,\"fma_per_second\":%.4e,\"units_per_second\":%.4e}%s\n",
                p.best * p.bytes_per_unit, p.best * p.fma_per_unit, p.best, i + 1 < points.size() ? "," : "");
  }
  std::printf("]}\n");
}

Data make_data(size_t threads) {
  Data data;
  data.weights = static_cast<uint8_t*>(allocate(kWeights));
  data.scales = static_cast<uint8_t*>(allocate(kWeights / 16));
  data.x = static_cast<float*>(allocate(8 * kMiB));
  uint64_t state = 1;
  const auto next = [&state] { return state = state * 6364136223846793005u + 1442695040888963407u; };
  auto* halves = reinterpret_cast<uint16_t*>(data.weights);  // as bf16: +-2^-7 to 2^-5
  for (size_t i = 0; i < kWeights / 2; i++)
    halves[i] = static_cast<uint16_t>(0x3c00 | (next() >> 48 & 0x80ff));
  for (size_t i = 0; i < kWeights / 16; i++) data.scales[i] = static_cast<uint8_t>(0x78 + (next() >> 63));
  for (size_t i = 0; i < kMostTokens * kMostColumns; i++)
    data.x[i] = static_cast<float>(static_cast<int64_t>(next()) >> 40) * 0x1p-23f;
  for (size_t t = 0; t < threads; t++) {
    data.y.push_back(static_cast<float*>(allocate(2 * kMiB)));
    data.states.push_back(static_cast<float*>(allocate(64 * kMiB)));
    std::memset(data.states[t], 0, 64 * kMiB);
  }
  return data;
}

}  // namespace
}  // namespace k3::bench

int main(int argc, char** argv) {
  using namespace k3::bench;
  size_t rounds = 5, threads = 2, most_tokens = kMostTokens;
  double seconds = 0.06;
  bool own_time = false;
  std::string only, table;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!std::strcmp(argv[i], "--rounds")) rounds = std::strtoull(argv[i + 1], nullptr, 10);
    if (!std::strcmp(argv[i], "--tokens")) most_tokens = std::strtoull(argv[i + 1], nullptr, 10);
    if (!std::strcmp(argv[i], "--threads")) threads = std::max(1ull, std::strtoull(argv[i + 1], nullptr, 10));
    if (!std::strcmp(argv[i], "--seconds")) seconds = std::strtod(argv[i + 1], nullptr);
    if (!std::strcmp(argv[i], "--clock")) own_time = !std::strcmp(argv[i + 1], "cpu");
    if (!std::strcmp(argv[i], "--only")) only = argv[i + 1];
    if (!std::strcmp(argv[i], "--table")) table = argv[i + 1];
  }
  Data data = make_data(threads);
  std::vector<Point> points;
  const std::vector<size_t> counts = threads > 1 ? std::vector<size_t>{1, threads} : std::vector<size_t>{1};
  for (const size_t n : counts) add_bounds(points, data, n);
  for (const char* name : {"avx2", "avx512", "neon", "scalar"}) {
    const k3::Kernels* kernels = k3::kernels_for(name);
    if (!kernels ||
        (table.empty() ? !std::strcmp(name, "scalar") && kernels != k3::kernels_for(nullptr) : table != name))
      continue;
    for (const size_t n : counts) {
      for (const size_t tokens : {1, 4, 16, 128}) add_products(points, *kernels, data, n, tokens, false);
      add_products(points, *kernels, data, n, 1, true);
      add_layers(points, *kernels, data, n);
      std::erase_if(points, [&](const Point& p) { return p.tokens > most_tokens; });
    }
  }
  if (!only.empty())
    std::erase_if(points, [&](const Point& p) {
      return p.kernel != "read" && p.kernel != "fma" && p.kernel.find(only) == std::string::npos;
    });
  const auto limit = [&points](const Point& point) -> const Point* {
    if (point.kernel == "read" || point.place != "memory") return nullptr;
    const auto found = std::find_if(points.begin(), points.end(), [&](const Point& p) {
      return p.kernel == "read" && p.place == "memory" && p.threads == point.threads;
    });
    return found == points.end() ? nullptr : &*found;
  };
  for (size_t round = 0; round < rounds; round++)
    for (Point& point : points) measure(point, limit(point), seconds, own_time);
  print(points, rounds, seconds, own_time);
  return 0;
}
