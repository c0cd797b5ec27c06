"""WebDataset's samples: which members of a tar archive belong together.

A member's key is its name up to the first dot after the last slash.  Its extension is the rest, in lower case.
Consecutive members with one key are a sample.  Members without a key, and WebDataset's own (__meta__/...), belong to no
sample.
"""

import re

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp

SPLIT = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")      # WebDataset's


cdef bint split(const uint8_t *name, Py_ssize_t size, Py_ssize_t *key, Py_ssize_t *rest) noexcept:
    """Find where a member's key ends and its extension begins, as SPLIT does; false if it has no key."""
    cdef Py_ssize_t base = size, folder, dot
    while base and name[base - 1] != c"/":
        base -= 1
    dot = base
    while dot < size and name[dot] != c".":
        dot += 1
    if dot == size:
        return False
    if dot == base:         # a hidden name: its key is the folder, unless the folder's own name has a dot
        if base == 0:
            return False
        folder = base - 1
        while folder and name[folder - 1] != c"/":
            folder -= 1
        if memchr(name + folder, c".", base - folder) != NULL:
            return False
    key[0], rest[0] = dot, dot + 1
    return True


cdef bint is_meta(const uint8_t *name, Py_ssize_t size) noexcept:
    """Whether a member is WebDataset's own: its first folder, or its name, begins and ends with two underscores."""
    cdef const void *slash = memchr(name, c"/", size)
    cdef Py_ssize_t end = size if slash == NULL else <const uint8_t *>slash - name
    return (end >= 4 and name[0] == c"_" and name[1] == c"_" and name[end - 2] == c"_" and name[end - 1] == c"_")


cdef bytes lower(const uint8_t *text, Py_ssize_t size):
    cdef bytes made = PyBytes_FromStringAndSize(<const char *>text, size)
    cdef Py_ssize_t k
    cdef bint is_low = True
    for k in range(size):
        if text[k] >= 0x80:
            return made.decode("utf-8", "surrogateescape").lower().encode("utf-8", "surrogateescape")
        if c"A" <= text[k] <= c"Z":
            is_low = False
    return made if is_low else made.lower()


def group(bytes names, bytes all_ends not None, bytes all_places not None, bytes all_sizes not None):
    """Group consecutive members with one key into samples, as WebDataset does.

    Args:
        names: the names of all members, joined.
        all_ends: where each name ends, as words of 64 bits.
        all_places, all_sizes: of each member, as such words.

    Returns:
        the keys of all samples, joined, and where each ends;
        for each sample, how many members it and all samples before it have;
        for each member of a sample, its number, its place, its size, and the number of its extension (32 bits);
        the extensions.  Numbers are words of 64 bits, as bytearrays.

    Raises:
        KeyError: a sample has an extension twice; with the member's name.
    """
    cdef const uint8_t *text = names
    cdef const uint64_t *ends = <const uint64_t *><const char *>all_ends
    cdef const uint64_t *places = <const uint64_t *><const char *>all_places
    cdef const uint64_t *sizes = <const uint64_t *><const char *>all_sizes
    cdef Py_ssize_t count = len(all_ends) // 8, at, begin = 0, end, key = 0, rest = 0, own_key = -1, own_size = 0
    cdef Py_ssize_t samples = 0, members = 0
    cdef bytearray key_text = bytearray()
    cdef bytearray key_ends = bytearray(8 * count), sample_ends = bytearray(8 * count)
    cdef bytearray which = bytearray(8 * count), kept_places = bytearray(8 * count), kept_sizes = bytearray(8 * count)
    cdef bytearray kinds = bytearray(4 * count)
    cdef uint64_t *key_end = <uint64_t *><char *>key_ends
    cdef uint64_t *sample_end = <uint64_t *><char *>sample_ends
    cdef uint64_t *member = <uint64_t *><char *>which
    cdef uint64_t *place = <uint64_t *><char *>kept_places
    cdef uint64_t *size = <uint64_t *><char *>kept_sizes
    cdef uint32_t *kind = <uint32_t *><char *>kinds
    cdef dict numbers = {}
    cdef list last = []         # for each extension, the last sample that has it
    cdef bytes extension
    cdef uint32_t number
    if len(all_places) < 8 * count or len(all_sizes) < 8 * count:
        raise ValueError(f"{count} members, and not a place and a size for each")
    for at in range(count):
        end = ends[at]
        if begin > end or end > len(names):
            raise ValueError("names end before they begin")
        if not is_meta(text + begin, end - begin):
            if memchr(text + begin, c"\n", end - begin) != NULL:
                found = SPLIT.match(names[begin:end].decode("utf-8", "surrogateescape"))
                is_one = found is not None
                if is_one:
                    key = len(found[1].encode("utf-8", "surrogateescape"))
                    rest = key + 1
            else:
                is_one = split(text + begin, end - begin, &key, &rest)
            if is_one:
                extension = lower(text + begin + rest, end - begin - rest)
                if own_key < 0 or key != own_size or memcmp(text + own_key, text + begin, key) != 0:
                    if samples:
                        sample_end[samples - 1] = members
                    own_key, own_size = begin, key
                    key_text += names[begin:begin + key]
                    key_end[samples] = len(key_text)
                    samples += 1
                found = numbers.get(extension)
                if found is None:
                    found = numbers[extension] = len(last)
                    last.append(-1)
                number = found
                if last[number] == samples or extension == b"__key__" or extension == b"__url__":
                    raise KeyError(names[begin:end].decode("utf-8", "surrogateescape"))
                last[number] = samples
                member[members], place[members], size[members] = at, places[at], sizes[at]
                kind[members] = number
                members += 1
        begin = end
    if samples:
        sample_end[samples - 1] = members
    for cut, length in ((key_ends, 8 * samples), (sample_ends, 8 * samples), (which, 8 * members),
                        (kept_places, 8 * members), (kept_sizes, 8 * members), (kinds, 4 * members)):
        del cut[length:]
    return bytes(key_text), key_ends, sample_ends, which, kept_places, kept_sizes, kinds, list(numbers)
