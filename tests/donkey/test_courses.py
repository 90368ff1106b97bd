import numpy as np
import pytest

from piwm_gym.courses import (
    COURSES,
    DEFAULT_COURSE,
    Course,
    clearance,
    get_course,
    random_course,
    rounded_polygon,
    wrap_angle,
)

RANDOM = [f"random-{seed}" for seed in range(12)]
SHORTEST = {"hills": 40.0}


def rights(course: Course) -> np.ndarray:
    return np.stack([np.sin(course.headings), -np.cos(course.headings)], 1)


@pytest.mark.parametrize("name", [*COURSES, *RANDOM])
def test_paths_are_closed_smooth_and_clear_of_themselves(name):
    course = get_course(name)
    gaps = np.linalg.norm(np.roll(course.path, -1, 0) - course.path, axis=1)
    assert np.allclose(gaps, 0.1, atol=1e-3)
    assert course.spacing == pytest.approx(0.1, abs=5e-4)
    assert course.length == pytest.approx(gaps.sum())
    assert course.length > SHORTEST.get(name, 15.0)
    assert np.sum(course.curvature) * course.spacing == pytest.approx(2 * np.pi, rel=1e-6)
    assert np.abs(course.curvature).max() < 1 / 0.68
    assert np.allclose(course.path.max(0), -course.path.min(0), atol=1e-9)
    # Where two parts face each other, at least the roads' edges do not meet.
    assert clearance(course) > 2 * (course.road_half_width + abs(course.road_offset)) - 0.1


def test_the_default_course_is_like_the_generated_track():
    course = get_course(DEFAULT_COURSE)
    assert 22 <= course.length <= 27
    assert (np.abs(course.path) <= (4.2, 2.8)).all()
    assert 1 / np.abs(course.curvature).max() == pytest.approx(0.9, abs=0.1)
    assert course.curvature.max() > 0.9
    assert course.curvature.min() < -0.9
    assert np.mean(np.abs(course.curvature) < 1e-6) > 0.3


def test_a_rounded_square():
    course = Course("square", rounded_polygon([(0, 0, 1), (5, 0, 1), (5, 5, 1), (0, 5, 1)]))
    assert course.length == pytest.approx(12 + 2 * np.pi, rel=1e-3)
    assert course.spawn == pytest.approx((2.5, 0.0, 0.0), abs=1e-3)
    assert course.curvature.max() == pytest.approx(1.0, rel=0.01)
    with pytest.raises(ValueError, match=r"corners 0 and 1 are .* too close for their radii"):
        rounded_polygon([(0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1)])


@pytest.mark.parametrize("name", COURSES)
@pytest.mark.parametrize("aside", [-0.4, 0.0, 0.3])
def test_distances_are_positive_to_the_right(name, aside):
    course = get_course(name)
    arc, offset = course.project(course.path + aside * rights(course))
    assert np.allclose(offset, aside, atol=3e-3)
    along = wrap_angle((arc - np.arange(len(arc)) * course.spacing) / course.length * 2 * np.pi)
    assert np.abs(along * course.length).max() < 0.15


def test_projection_keeps_the_shape_and_joins_the_ends():
    course = get_course("hall")
    points = np.zeros((2, 3, 2)) + course.path[0]
    points[1] += (-0.04, 0.0)
    arc, offset = course.project(points)
    assert arc.shape == offset.shape == (2, 3)
    assert np.allclose(arc[0] % course.length, 0, atol=1e-9)
    assert np.allclose(arc[1], course.length - 0.04)


def test_the_same_seed_gives_the_same_course():
    assert np.array_equal(random_course(5).path, random_course(5).path)
    assert not np.array_equal(random_course(5).path, random_course(6).path)
    assert get_course("random-5").name == "random-5"


@pytest.mark.parametrize("name", ["medow", "random-x", "random", "", 5, None])
def test_unknown_names(name):
    with pytest.raises(ValueError, match=r"'hills', 'random-<seed>'") as error:
        get_course(name)
    assert ("did you mean 'meadow'?" in str(error.value)) == (name == "medow")
