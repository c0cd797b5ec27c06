"""Baseline JPEG files from random coefficients, with whatever sampling, tables and restarts: Pillow writes only a few.

The pictures are noise; what they are meant for is a second decoder that must see the same noise.
"""

from __future__ import annotations

import dataclasses
import random
import struct
from typing import Any

Factors = tuple[tuple[int, int], ...]
SAMPLINGS: dict[str, Factors] = {
    "4:4:4": ((1, 1), (1, 1), (1, 1)),
    "4:2:2": ((2, 1), (1, 1), (1, 1)),
    "4:2:0": ((2, 2), (1, 1), (1, 1)),
    "4:4:0": ((1, 2), (1, 1), (1, 1)),
    "4:1:1": ((4, 1), (1, 1), (1, 1)),
    "4:1:0": ((4, 2), (1, 1), (1, 1)),
    "a third across": ((3, 1), (1, 1), (1, 1)),
    "a third down": ((1, 3), (1, 1), (1, 1)),
    "4:2:2 in taller MCUs": ((2, 2), (1, 2), (1, 2)),
    "4:4:4 in larger MCUs": ((2, 1), (2, 1), (2, 1)),
    "grey": ((1, 1),),
    "grey, with factors that say nothing": ((2, 2),),
}


@dataclasses.dataclass
class Noise:
    """The parameters of a picture."""

    seed: int
    width: int
    height: int
    factors: Factors = SAMPLINGS["4:2:0"]
    restart: int = 0
    is_wild: bool = False  # coefficients that no encoder makes
    is_longest: bool = False  # as many bits as an MCU can have: codes of 16 bits, and the most extra bits
    is_shortest: bool = False  # half of the blocks are the shortest ones whose last coefficient is not 0
    markers: bytes = b""  # before the frame
    names: bytes = b"\1\2\3"
    frame: int = 0xC0


class _Bits:
    def __init__(self) -> None:
        self.value, self.count, self.bytes = 0, 0, bytearray()

    def put(self, value: int, count: int) -> None:
        self.value, self.count = self.value << count | value, self.count + count
        while self.count >= 8:
            self.count -= 8
            byte = self.value >> self.count & 255
            self.bytes += b"\xff\0" if byte == 255 else bytes([byte])
        self.value &= (1 << self.count) - 1

    def pad(self) -> None:
        if self.count:
            self.put((1 << 8 - self.count) - 1, 8 - self.count)


def _codes(symbols: list[int], rng: random.Random, given: list[int] | None) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """A Huffman table of codes of random lengths, up to 16 bits: its bytes in a file, and symbol -> (code, length)."""
    lengths = list(given or [])
    # In units of a code of 16 bits; the code of ones alone is nobody's.
    room = (1 << 16) - 1 - sum(1 << 16 - length for length in lengths)
    for left in range(len(symbols), len(lengths), -1):
        shortest = next(n for n in range(1, 17) if room - (1 << 16 - n) >= left - 1)
        lengths.append(min(16, shortest + rng.choice((0, 0, 0, 1, 2, 5))))
        room -= 1 << 16 - lengths[-1]
    lengths.sort()
    code, before, codes = 0, lengths[0], {}
    for symbol, length in zip(symbols, lengths, strict=True):
        code <<= length - before
        codes[symbol] = (code, length)
        code, before = code + 1, length
    return bytes(lengths.count(n) for n in range(1, 17)) + bytes(symbols), codes


def _marker(number: int, payload: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, number, len(payload) + 2) + payload


def _bits_of(value: int) -> tuple[int, int]:
    size = abs(value).bit_length()
    return (value if value >= 0 else value + (1 << size) - 1), size


def write(noise: Noise) -> bytes:
    """The file."""
    rng = random.Random(noise.seed)
    across, down = (max(f[k] for f in noise.factors) for k in (0, 1))
    if len(noise.factors) == 1:
        across = down = 1
    tables, codes = b"", []
    for number in range(2):
        dc, ac = list(range(12)), [run << 4 | size for run in range(16) for size in range(1, 11)] + [0x00, 0xF0]
        rng.shuffle(dc)
        rng.shuffle(ac)
        if noise.is_longest:
            dc, ac = [11], [0x0A]
        elif noise.is_shortest:
            for symbols, short in ((dc, 0x00), (ac, 0x21), (ac, 0xE1)):
                symbols.remove(short)
                symbols.insert(0, short)
        elif rng.random() < 0.7:  # an end of block is mostly short
            ac.remove(0)
            ac.insert(rng.randrange(3), 0)
        pair = []
        for kind, symbols in enumerate((dc, ac)):
            given = [16] if noise.is_longest else [1, 2][: kind + 1] if noise.is_shortest else None
            table, code = _codes(symbols, rng, given)
            tables += _marker(0xC4, bytes([kind << 4 | number]) + table)
            pair.append(code)
        codes.append(pair)
    largest = 255 if noise.is_wild else rng.choice((1, 4, 20))
    for number in range(2):
        tables += _marker(0xDB, bytes([number]) + bytes(rng.randint(1, largest) for _ in range(64)))
    if noise.restart:
        tables += _marker(0xDD, struct.pack(">H", noise.restart))
    size = struct.pack(">BHHB", 8, noise.height, noise.width, len(noise.factors))
    frame, scan = b"", b""
    for k, (h, v) in enumerate(noise.factors):
        frame += bytes([noise.names[k], h << 4 | v, min(k, 1)])
        scan += bytes([noise.names[k], 0x11 * min(k, 1)])
    begin = b"\xff\xd8" + noise.markers + tables + _marker(noise.frame, size + frame)
    begin += _marker(0xDA, bytes([len(noise.factors)]) + scan + b"\0\x3f\0")

    bits, predicted = _Bits(), [0, 0, 0]
    mcus = -(-noise.width // (8 * across)) * -(-noise.height // (8 * down))
    for mcu in range(mcus):
        if noise.restart and mcu and mcu % noise.restart == 0:
            bits.pad()
            bits.bytes += bytes([0xFF, 0xD0 + (mcu // noise.restart - 1) % 8])
            predicted = [0, 0, 0]
        for k, (h, v) in enumerate(noise.factors):
            for _ in range(h * v if len(noise.factors) > 1 else 1):
                if noise.is_longest:
                    predicted[k] = _longest_block(bits, rng, codes[min(k, 1)], predicted[k])
                elif noise.is_shortest and rng.random() < 0.5:
                    _shortest_block(bits, rng, codes[min(k, 1)])
                else:
                    predicted[k] = _block(bits, rng, codes[min(k, 1)], predicted[k], noise.is_wild, largest)
    bits.pad()
    return begin + bytes(bits.bytes) + b"\xff\xd9"


def _block(bits: _Bits, rng: random.Random, codes: Any, predicted: int, is_wild: bool, largest: int) -> int:
    dc, ac = codes
    reach = 2047 if is_wild else 1000 // largest
    value = max(-reach, min(reach, predicted + rng.randint(-reach // 2 - 1, reach // 2 + 1)))
    extra, size = _bits_of(value - predicted)
    if size > 11:
        value, extra, size = predicted, 0, 0
    bits.put(*dc[size])
    bits.put(extra, size)
    position, end = 1, rng.choice((1, 1, 2, 3, 6, 20, 64))
    while position < end:
        run = min(rng.choice((0, 0, 0, 1, 2, 5, 14, 17, 40)), end - 1 - position)
        while run > 15:
            bits.put(*ac[0xF0])
            run, position = run - 16, position + 16
        reach = 1023 if is_wild else max(1, 200 // largest)
        extra, size = _bits_of(rng.choice((-1, 1)) * rng.randint(1, rng.choice((1, 3, reach)) if reach > 3 else reach))
        bits.put(*ac[run << 4 | size])
        bits.put(extra, size)
        position += run + 1
    if position < 64:
        bits.put(*ac[0])
    return value


def _longest_block(bits: _Bits, rng: random.Random, codes: Any, predicted: int) -> int:
    dc, ac = codes
    value = -1023 if predicted > 0 else 1024
    bits.put(*dc[11])
    bits.put(*_bits_of(value - predicted))
    for _ in range(63):
        bits.put(*ac[0x0A])
        bits.put(rng.getrandbits(10), 10)
    return value


def _shortest_block(bits: _Bits, rng: random.Random, codes: Any) -> None:
    """Twelve bits: the former DC, and five coefficients of 1 or -1, of which one look-up finds two."""
    dc, ac = codes
    bits.put(*dc[0])
    for symbol in (0xE1, 0xE1, 0xE1, 0xE1, 0x21):
        bits.put(*ac[symbol])
        bits.put(rng.getrandbits(1), 1)
