from tests.benchmarks.stolen import SHARE_MAX, TRIES_MAX, Calm


class Host:
    """A machine whose host takes so many of each 100 ticks of a measurement."""

    def __init__(self, *takes: int) -> None:
        self._takes = iter(takes)
        self._stolen = self._total = 0
        self.measured = 0

    def ticks(self) -> tuple[int, int]:
        return self._stolen, self._total

    def measure(self) -> int:
        self.measured += 1
        self._stolen += next(self._takes)
        self._total += 100
        return self.measured


def test_what_the_host_left_alone_is_measured_once():
    host = Host(int(100 * SHARE_MAX))
    calm = Calm(host.ticks)
    assert calm.measure(host.measure) == 1
    assert calm.share == SHARE_MAX


def test_what_the_host_disturbed_is_measured_again():
    host = Host(30, 1)
    calm = Calm(host.ticks)
    assert calm.measure(host.measure) == 2
    assert calm.share == 0.01


def test_of_disturbed_ones_the_calmest_is_kept_and_it_ends():
    host = Host(30, 10, 20, *range(10))
    calm = Calm(host.ticks)
    assert calm.measure(host.measure) == 2
    assert host.measured == TRIES_MAX
    assert calm.share == 0.1


def test_the_share_is_the_worst_of_several_measurements():
    host = Host(2, 1)
    calm = Calm(host.ticks)
    calm.measure(host.measure)
    calm.measure(host.measure)
    assert calm.share == 0.02


def test_ticks_are_read_from_this_machine():
    calm = Calm()
    assert calm.measure(lambda: sum(range(1_000_000))) == 499_999_500_000
    assert 0.0 <= calm.share <= 1.0
